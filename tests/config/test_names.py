"""Names of settings in other projects: each is taken, or the error names the setting here."""

import re
from functools import cache

import pytest

from showattendtell.__main__ import COMMANDS
from showattendtell.config.command_line import find_options
from showattendtell.config.compose import compose
from showattendtell.config.names import ALIASES, MEANT
from showattendtell.errors import UserError

SIDES = ("train", "caption", "evaluate", "score")


@cache
def hints_of(command: str) -> dict[str, str]:
    """What a command says of each name that it does not take."""
    own = {*compose(command, complete=False)}
    with pytest.raises(UserError) as error:
        compose(command, [f"{name}=1" for name in MEANT if name not in own | {*ALIASES}], complete=False)
    return dict(re.findall(r"there is no setting (\w+)(.*)", str(error.value)))


def test_a_name_of_another_project_leads_to_the_setting_here():
    for name in MEANT.keys() - {*ALIASES, "data"}:
        hints = [hint for command in SIDES if "did you mean" in (hint := hints_of(command).get(name, ""))]
        assert hints, name
        for meant in re.findall(r"'(.*?)'", " ".join(hints)):
            assert meant in MEANT[name] or meant.endswith(f".{name}"), name


@pytest.mark.parametrize("command", SIDES)
def test_what_an_error_names_is_there(command: str):
    hints = "".join(hints_of(command).values())
    meant = {*re.findall(r"'(.*?)'", hints)}
    assert {name.partition("=")[2] for name in meant if "=" in name} <= {"NAME", "ema", "sample"}
    for group in {name.partition("=")[0] for name in meant if "=" in name}:
        assert find_options(group)
    with pytest.raises(UserError) as error:
        compose(command, ["seed=no", *(f"{name}=null" for name in meant if "=" not in name)], complete=False)
    assert "there is no setting" not in str(error.value)
    assert {*re.findall(r"the command (\w+)", hints)} <= {*COMMANDS}


HINTS = [
    (
        "train",
        {
            "data=flickr8k": "; did you mean 'dataset=NAME'?",
            "model=resnet18": "; did you mean 'encoder.network' or 'decoder=NAME'?",
            "backbone=resnet18": "; did you mean 'encoder.network' or 'encoder=NAME'?",
            "optimized_metric=bleu4": "; did you mean 'monitor'?",
            "test=true": "; did you mean the command evaluate or 'dataset.test'?",
            "checkpoint=a.ckpt": "; did you mean 'init_from' or 'resume'?",
            "output=runs/mine": "; did you mean 'hydra.run.dir' or 'decoder.output'?",
            "trainer.grad_clip=5": "; did you mean 'trainer.gradient_clip_val'?",
            "device=cuda": "; did you mean 'trainer.accelerator'?",
            "encoder=resnet18": "timm's resnet18 is encoder.network=resnet18 encoder.weights=hub",
            "bones=3": "there is no setting bones; available: attention, ",  # not trainer.barebones
        },
    ),
    (
        "caption",
        {
            "model=a.ckpt": "; did you mean 'checkpoint'?",
            "beam=5": "; did you mean 'decoding.beam_size'?",
            "top_p=0.9": "; did you mean 'decoding=sample'?",
            "source=a.jpg": "; did you mean 'images'?",
        },
    ),
    ("evaluate", {"best.ckpt": "'best.ckpt' is not a setting; give it as checkpoint=best.ckpt"}),
    ("train", {"best.ckpt": "or to train as init_from=best.ckpt"}),
    ("score", {"results.json": "; settings are given as name=value"}),
]


@pytest.mark.parametrize(("command", "hints"), HINTS)
def test_suggestions_do_not_mislead(command: str, hints: dict[str, str]):
    with pytest.raises(UserError) as error:
        compose(command, [*hints], complete=False)
    assert [hint for hint in hints.values() if hint not in str(error.value)] == []


def test_tags_are_a_setting():
    assert list(compose("train", ["tags=[first,second]"]).tags) == ["first", "second"]
