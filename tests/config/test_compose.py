"""One pass of configuration: Hydra composes, and everything that is wrong is reported at once, with what was meant."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import OmegaConf
from slow_cases import slow_after

from showattendtell.config.command_line import config_folders, find_options
from showattendtell.config.compose import compose
from showattendtell.config.validation import to_plain
from showattendtell.errors import UserError

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize(
    "lines",
    slow_after(
        2,
        [
            ["seed=7"],
            ["++decoder.dropout=0.25", "data.batch_size=3", "decoder.hidden_dim=${data.batch_size}"],
            ["attention=hard", "seed=3", "++attention.num_samples=2"],
            ["callbacks.early_stopping.patience=2", "++encoder.size=64", "cache='a b=c'"],
            ["++trainer.devices=[0,1]", "seed=1"],
            ["reward=cider", "++reward.num_samples=2"],
        ],
    ),
    ids=str,
)
def test_the_configuration_is_the_one_that_hydra_composes(lines: list[str]):
    with hydra.initialize_config_dir(config_folders()[0], version_base=None):
        whole = hydra.compose("train", lines)
    assert OmegaConf.to_container(compose("train", lines)) == OmegaConf.to_container(whole)


WRONG = [
    (
        "train",
        {
            "attention=sofd": "there is no attention=sofd; did you mean 'soft'",
            "attention/score=cosin": "did you mean 'cosine'",
            "experiment=paper/flickr8k_sof": "did you mean 'paper/flickr8k_soft'",
            "schedule=null": "there is no schedule=null",
            "decoder.dropot=0.3": "decoder.dropot; did you mean 'decoder.dropout'",
            "decodr.dropout=0.3": "there is no setting decodr.dropout; did you mean 'decoder.dropout'",
            "model.hidden_dim=3": "there is no setting model.hidden_dim; did you mean 'decoder.hidden_dim'",
            "heads=3": "there is no setting heads; available: attention, augment",
            "bones=3": "there is no setting bones; available: attention, ",  # not trainer.barebones
            "sed=3": "there is no setting sed; did you mean 'seed'",
            "tie_embeddings=true": "did you mean 'decoder.tie_embeddings'",
            "train.epochs=3": "did you mean 'trainer.max_epochs'?",
            "optimizer.learning_rate=0.1": "did you mean 'optimizer.lr'?",
            "output=runs/mine": "did you mean 'hydra.run.dir' or 'decoder.output'?",
            "decoder.dropout=0.1,0.2": "put -m before it",
            "dataset.root=a=b": "quote",
            "decoder.vocabulary_size=9": "set by the code",
            "data=flickr8k": "; did you mean 'dataset=NAME'?",
            "backbone=resnet18": "; did you mean 'encoder.network' or 'encoder=NAME'?",
            "optimized_metric=bleu4": "; did you mean 'monitor'?",
            "test=true": "; did you mean the command evaluate or 'dataset.test'?",
            "checkpoint=a.ckpt": "; did you mean 'init_from' or 'resume'?",
            "trainer.grad_clip=5": "; did you mean 'trainer.gradient_clip_val'?",
            "device=cuda": "; did you mean 'trainer.accelerator'?",
        },
    ),
    (
        "train",
        {
            "attention._target_=nosuch.Thing": "there is no package nosuch",
            "decoder.dropout=1.5": "decoder.dropout=1.5 should be less than 1",
            "encoder.size=0": "encoder.size=0 should be greater than 0",
            "loss=SoftLoss": "there is no loss=SoftLoss; available: hard, soft",
            "attention.score.wdth=64": "attention.score.wdth; did you mean 'attention.score.width'",
        },
    ),
    (
        "train",
        {
            "model=resnet18": "; did you mean 'encoder.network' or 'decoder=NAME'?",
            "encoder=resnet18": "timm's resnet18 is encoder.network=resnet18 encoder.weights=hub",
            "attention=None": "there is no attention=null; did you mean 'none'",
            "experiment=None": "there is no experiment=null; available: coco",
            "dataset.root=None": "dataset.root=null should be a valid string",
            "distillation=runs/train.json": "distillation.NAME=value",
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
    ("train", {"cache=": "cache= has no value; give cache=VALUE"}),
    ("train", {"dropout": "'dropout' is not a setting; settings are given as dropout=value"}),
    ("train", {"attention._args_=[1]": "_args_"}),
    ("train", {"seed=1,": "seed=1,"}),
    ("train", {"best.ckpt": "or to train as init_from=best.ckpt"}),
    ("evaluate", {"best.ckpt": "'best.ckpt' is not a setting; give it as checkpoint=best.ckpt"}),
    ("score", {"results.json": "; settings are given as name=value"}),
]


@pytest.mark.parametrize(("command", "wrong"), WRONG)
def test_all_wrong_arguments_are_reported_at_once_in_a_sentence_each(command: str, wrong: dict[str, str]):
    with pytest.raises(UserError) as error:
        compose(command, [*wrong], complete=False)
    lines = str(error.value).splitlines()
    assert len(lines) == len(wrong) + (len(wrong) > 1)
    assert [sentence for sentence in wrong.values() if not any(sentence in line for line in lines)] == []


@pytest.mark.parametrize(
    ("command", "line", "sentence"),
    [
        ("evaluate", ["checkpont=a.ckpt"], "checkpont; did you mean 'checkpoint'"),
        ("evaluate", ["checkpont=a.ckpt"], "checkpoint is not set; give it as checkpoint="),
        ("evaluate", ["checkpoint=a.ckpt", "+attention=hard"], "attention=hard cannot be chosen here"),
        ("evaluate", ["checkpoint=best.ckpt", "beam_size=0"], "decoding.beam_size=0 should be greater than 0"),
        ("caption", ["images=a.jpg", "width=0.001"], "width=0.001 should be a width in inches, 0.5 to 20"),
        ("caption", ["images=a.jpg", "decoding=sample", "decoding.temperature=1e-50"], "should be greater than"),
        ("train", ["attention.score.width=2.5"], "attention.score.width=2.5 should be a valid integer"),
        ("train", ["loss.doubly_stochastic_weight=inf"], "doubly_stochastic_weight=inf should be a finite number"),
        ("train", ["optimizer=sgd"], "another class is optimizer._target_=torch.optim.NAME"),
        ("train", ["trainer=cpu"], "a device is trainer.accelerator=cpu"),
        ("average", ["checkpoint=[a.ckpt]", "output=c.ckpt"], "should have at least 2 items"),
        ("train", ["dataset.root=2014"], "should be a valid string; quote a text of digits: 'dataset.root=\"2014\"'"),
        ("train", ["dataset=custom", "dataset.root=[.]", "dataset.captions=."], "root=[.] should be a valid string"),
    ],
)
def test_a_wrong_setting_of_another_command_is_reported(command: str, line: list[str], sentence: str):
    with pytest.raises(UserError, match=re.escape(sentence)):
        compose(command, line)


RUN_LIGHT = f"runpy.run_path({str(FIXTURES / 'light_command.py')!r}, run_name='__main__')"


@pytest.mark.parametrize(
    ("line", "sentences"),
    slow_after(
        1,
        [
            (["attention=soft,hrad", "seed=0", "dataset.root=a=b"], ["did you mean 'hard'", "quote special"]),
            (["decoder.dropot=0.1,0.2"], ["dropot=0.1: error: there is no setting decoder.dropot; did"]),
            (["seed=-1,6", "decoder.dropout=1.5"], ["seed=-1 decoder.dropout=1.5: error: 2 settings are wrong"]),
            (["decoder.hidden_dim=range(0,64,32)"], ["decoder.hidden_dim=0 should be greater than 0"]),
        ],
    ),
)
def test_a_run_of_a_sweep_with_a_wrong_value_is_refused(
    run_light: Callable[..., Any], tmp_path: Path, line: list[str], sentences: list[str]
):
    done = run_light(RUN_LIGHT, "train", "-m", *line, folder=tmp_path)
    assert done.status == 2
    assert "Traceback" not in done.err
    for sentence in sentences:
        assert sentence in done.err


def test_a_class_of_your_own_is_accepted_with_the_settings_of_its_signature(parts: str):
    line = ["attention=none", "attention.samples=3", "attention._target_=parts.Hard"]
    assert compose("train", line).attention.samples == 3
    with pytest.raises(UserError, match=r"attention._target_=parts.Hrad: parts has no Hrad"):
        compose("train", ["attention._target_=parts.Hrad"])


FORMS = {
    "flag": lambda *folders: [f"--config-dir={folder}" for folder in folders],
    "path": lambda *folders: [f"hydra.searchpath=[{','.join(folders)}]"],
    "URL": lambda *folders: [f"hydra.searchpath=[{','.join(Path(folder).absolute().as_uri() for folder in folders)}]"],
    "both": lambda first, *others: [f"--config-dir={first}", *(f"hydra.searchpath=[{folder}]" for folder in others)],
}


@pytest.mark.parametrize("form", slow_after(1, FORMS))
def test_options_may_be_in_folders_of_the_user(parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str):
    monkeypatch.chdir(tmp_path)
    for folder in ("mine/attention", "more/decoder"):
        Path(folder).mkdir(parents=True)
    Path("mine/attention/own.yaml").write_text("{_target_: parts.Hard, samples: 7, score: null}")
    Path("more/decoder/own.yaml").write_text("{defaults: [lstm], tie_embeddings: true}")
    folders = FORMS[form]("mine", "more")
    config = compose("train", [*folders, "attention=own", "decoder=own"])
    assert (config.attention.samples, config.decoder.tie_embeddings) == (7, True)
    with pytest.raises(UserError, match="did you mean 'own'"):
        compose("train", [*folders, "attention=onw"])


@pytest.mark.parametrize(
    "option", slow_after(2, ["attention/soft", "hydra/job_logging/none", "experiment/paper/coco", "train"])
)
def test_an_option_of_the_user_with_the_name_of_another_is_refused(tmp_path: Path, option: str):
    """Also one of Hydra's."""
    file = tmp_path / f"mine/{option}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("seed: 3")
    with pytest.raises(UserError, match=f"{file} has the name of an option in .*; rename it"):
        compose("train", [f"--config-dir={tmp_path}/mine"])


def test_folders_of_the_user_must_exist_and_have_different_options(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name / "debug").mkdir(parents=True)
        (tmp_path / name / "debug/own.yaml").touch()
    with pytest.raises(UserError, match="two/debug/own.yaml has the name of an option in .*one"):
        compose("train", FORMS["flag"](str(tmp_path / "one"), str(tmp_path / "two")))
    with pytest.raises(UserError, match="the folder .*three of options does not exist"):
        compose("train", FORMS["path"](str(tmp_path / "three")))


def test_an_extension_brings_its_options_and_its_command(parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "extensions/gadget/conf"
    (folder / "attention").mkdir(parents=True)
    (folder / "attention/gadget.yaml").write_text("{_target_: parts.Hard, samples: 5, score: null}")
    (folder / "wind.yaml").write_text("{defaults: [_self_, attention: gadget], seed: 4}")
    (tmp_path / "conf").symlink_to(config_folders()[0])
    monkeypatch.setattr("showattendtell.config.command_line.PACKAGE", tmp_path)
    assert config_folders() == [str(tmp_path / "conf"), str(folder)]
    assert compose("wind").attention.samples == 5
    assert "gadget" in find_options("attention")
    (tmp_path / "mine/attention").mkdir(parents=True)
    (tmp_path / "mine/attention/gadget.yaml").write_text("seed: 3")
    with pytest.raises(UserError, match="gadget.yaml has the name of an option in"):
        compose("train", [f"--config-dir={tmp_path}/mine"])


@pytest.mark.parametrize(
    ("flags", "gpu", "precision"),
    slow_after(
        1,
        [
            ("fpu avx512_bf16", False, "bf16-mixed"),
            ("avx2", False, None),
            ("fp bf16", False, "bf16-mixed"),
            ("amx_bf16", True, None),
        ],
    ),
)
def test_the_recipe_is_the_papers_in_bfloat16_where_the_cpu_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, gpu: bool, precision: str | None
):
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr("showattendtell.config.compose.CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr("showattendtell.config.compose.GPUS", [tmp_path / "cpuinfo"] if gpu else [])
    recipe = to_plain(compose("train", ["experiment=flickr8k"]))
    assert recipe["trainer"].pop("precision") == precision
    assert recipe == to_plain(compose("train", ["experiment=paper/flickr8k_soft_lite0"]))
