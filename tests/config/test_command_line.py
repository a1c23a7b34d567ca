"""The arguments of a command in Hydra's form: dashes, short names, positional arguments and paths."""

import shlex
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from slow_cases import slow_after

from showattendtell.config.command_line import as_argument, as_command, parse
from showattendtell.config.compose import compose
from showattendtell.config.names import ALIASES
from showattendtell.errors import UserError

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["++seed=3"], ["seed=3"]),
        (["+seed=3", "seed=4"], ["seed=4"]),
        (["attention=hard", "lr=3e-4"], ["attention=hard", "optimizer.lr=3e-4"]),
        (["attention=hard", "seed=1", "attention=soft"], ["seed=1", "attention=soft"]),
        (["--epochs", "3", "--decoder.dropout=0.1"], ["trainer.max_epochs=3", "decoder.dropout=0.1"]),
        (["--dataset.root", "my photos"], ['dataset.root="my photos"']),
        (["--encoder.mean", "[0.5,0.5,0.5]"], ["encoder.mean=[0.5,0.5,0.5]"]),
        (["-m", "--seed", "1,2"], ["seed=1,2"]),
        (["--init-from", "a,b.ckpt"], ['init_from="a,b.ckpt"']),
        (["hydra.run.dir=here", "hydra/launcher=joblib"], ["hydra.run.dir=here", "hydra/launcher=joblib"]),
        (["--cfg", "job", f"--config-dir={HERE}", "seed=1"], ["seed=1", f'hydra.searchpath=["file://{HERE}"]']),
        (["cache=~/a"], [f"cache={Path.home()}/a"]),
        (["cache=~"], [f"cache={Path.home()}"]),
        (["--cache=~/a"], [f"cache={Path.home()}/a"]),
        (["images=[~/a.jpg,b.jpg]"], [f"images=[{Path.home()}/a.jpg,b.jpg]"]),
        (["cache='~/a'", "output='a~b'"], ["cache='~/a'", "output='a~b'"]),
        (["cache=a b/für é"], ['cache="a b/für é"']),
        (["decoding.forbidden=[Hund,ein Mädchen]"], ['decoding.forbidden=[Hund,"ein Mädchen"]']),
        (["cache='a ü'"], ["cache='a ü'"]),
        (["+experiment=flickr8k"], ["experiment=flickr8k"]),
        (["init_from=None", "--trainer.precision=None"], ["init_from=null", "trainer.precision=null"]),
        (["init_from='None'", "seed=True"], ["init_from='None'", "seed=True"]),
    ],
)
def test_arguments_in_the_form_of_hydra(typed: list[str], expected: list[str]):
    assert parse("train", typed).overrides == expected


def test_every_short_name_stands_for_a_setting():
    values = {"decoder.dropout": 0.1, "dataset.root": "/photographs", "encoder.learning_rate": 0.1}
    by_setting = {setting: values.get(setting, 1) for setting in ALIASES.values()}
    config = compose("train", ["decoding=beam", *(f"{setting}={value}" for setting, value in by_setting.items())])
    for name, setting in ALIASES.items():
        assert OmegaConf.select(config, setting) == by_setting[setting]
        assert parse("train", [f"{name}=1"]).overrides == [f"{setting}=1"]


@pytest.mark.parametrize(("command", "setting"), [("train", "resume"), ("caption", "checkpoint")])
def test_a_path_of_a_checkpoint_is_resumed_or_read(command: str, setting: str):
    assert parse(command, ["ckpt_path=a.ckpt"]).overrides == [f"{setting}=a.ckpt"]


@pytest.mark.parametrize(
    "line",
    [
        ["~decoder"],
        ["--seed"],
        ["hydra.job.chdir=true"],
        ["--seed", "--cache=a"],
        ["--config-dir=nowhere"],
        ["attention.score=cosine"],
    ],
)
def test_arguments_that_are_no_settings_are_refused(line: list[str]):
    with pytest.raises(UserError):
        parse("train", line)


@given(st.lists(st.text(st.characters(exclude_characters="=", exclude_categories=["Cs"])), min_size=1, max_size=3))
@example(["a b.jpg", "it's", 'say "hi"', "[x]", "{y}", "a,b", "x\\", '\\"', "${seed}", "\\${seed}", "\\\\${seed}"])
@example(["null", "3", "*.jpg", "ünï/日本.jpg", "new\nline", " ", ""])
def test_a_positional_argument_of_any_name_arrives_as_it_was_given(names: list[str]):
    assume(not any(name.startswith(("-", "~")) or name == "???" for name in names))
    [line] = parse("report", names, "runs").overrides
    override = OverridesParser.create().parse_override(line)
    assert list(OmegaConf.create({"runs": override.value()}).runs) == names


def test_positional_arguments_stand_among_settings_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1").mkdir()
    line = ["a b.jpg", "checkpoint=best.ckpt", "lr=1", "c,d.jpg", "seed=3"]
    config = compose("caption", parse("caption", line, "images").overrides)
    assert (config.checkpoint, list(config.images), config.seed) == ("best.ckpt", ["a b.jpg", "lr=1", "c,d.jpg"], 3)
    with pytest.raises(UserError, match=r"images are given twice, as a\.jpg and as images=b\.jpg"):
        parse("caption", ["a.jpg", "images=b.jpg"], "images")


@pytest.mark.parametrize("path", slow_after(2, ["runs/a b", "${seed}", 'x"y', "end\\", "a=b,c", "runs/ü"]))
def test_a_printed_argument_is_read_as_the_value_that_it_stands_for(path: str):
    [argument] = shlex.split(as_argument("checkpoint", path))
    assert compose("evaluate", [argument]).checkpoint == path


@pytest.mark.parametrize("path", slow_after(1, ["epoch=1-step=32.ckpt", "a,b (2).ckpt", "über & co.ckpt"]))
def test_an_existing_path_needs_no_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        compose("evaluate", [f"checkpoint={path}"])
    Path(path).touch()
    assert compose("evaluate", [f"checkpoint={path}"]).checkpoint == path


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("HERE", "python -m showattendtell.train"),
        ("", "python -m showattendtell.train"),
        ("bin", "showattendtell train"),
    ],
)
def test_a_command_to_type_finds_the_modules_that_this_one_finds(
    monkeypatch: pytest.MonkeyPatch, first: str, command: str
):
    monkeypatch.setattr(sys, "path", [first.replace("HERE", str(Path.cwd())), *sys.path])
    assert as_command("train") == command
