"""Error messages for invalid configurations, and the values that must pass."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.compose import compose
from showattendtell.config.validation import checked, validate
from showattendtell.datamodules.datamodule import (
    Flickr8kDataModule,
    Flickr30kDataModule,
    FolderDataModule,
    ReaderDataModule,
)
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.consensus import Consensus
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.inference.pipeline import load
from showattendtell.models.encoder import Encoder
from showattendtell.training.module import CaptioningModule

TARGETS = {
    "decoder": "showattendtell.models.decoder.LSTMDecoder",
    "encoder": "showattendtell.models.encoder.Encoder",
    "loss": "showattendtell.losses.caption.SoftLoss",
    "schedule": "showattendtell.training.optimizers.Cosine",
    "decoding": "showattendtell.decoding.beam_search.BeamSearch",
    "data": "showattendtell.datamodules.datamodule.CaptionDataModule",
    "vocabulary": "showattendtell.text.vocabulary.Vocabulary.build",
    "dataset": "showattendtell.readers.shapes.read_shapes",
    "trainer": "pytorch_lightning.Trainer",
    "optimizer": "torch.optim.AdamW",
    "logger": "pytorch_lightning.loggers.WandbLogger",
}


def faults_of(setting: str, value: Any) -> list[str]:
    """The faults of a configuration whose one node has one setting, `node.name`."""
    node, name = setting.split(".")
    return validate(OmegaConf.create({node: {"_target_": TARGETS[node], name: value}}))


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("decoder.dropout", 1.0, "decoder.dropout=1.0 should be less than 1"),
        ("decoder.dropout", None, "decoder.dropout=null should be a valid number"),
        ("decoder.hidden_dim", 2.5, "decoder.hidden_dim=2.5 should be a valid integer"),
        ("decoder.tie_embeddings", "yes", "decoder.tie_embeddings=yes should be a valid boolean"),
        ("decoder.output", ["word", "ctx"], "decoder.output=.*ctx.* should be 'word', 'hidden' or 'context'"),
        ("encoder.stride", "first", "encoder.stride=first should be a valid integer or 'last'"),
        ("encoder.mean", [0.5, 0.5], r"encoder.mean=\[0.5,0.5\] should have more values$"),
        ("data.bucketing", "drawn", "data.bucketing=drawn should be 'paper', 'round_robin' or 'padded'"),
        ("vocabulary.size", 4, "vocabulary.size=4 should be greater than"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_reported_with_what_is_allowed(setting: str, value: Any, sentence: str):
    [fault] = faults_of(setting, value)
    assert re.match(sentence, fault)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("decoder.dropout", 0),
        ("encoder.stride", "last"),
        ("encoder.mean", [0.5, 0.5, 0.5]),
        ("encoder.learning_rate", 1),
        ("optimizer.betas", [0.9, 0.98]),
        ("trainer.precision", 16),
        ("trainer.devices", [0, 1]),
        ("trainer.max_time", "00:12:00:00"),
        ("trainer.max_time", {"hours": 1}),
        ("trainer.gradient_clip_val", None),
        ("logger.tags", ["a", "b"]),
    ],
)
def test_a_value_that_the_signature_takes_has_no_fault(setting: str, value: Any):
    assert faults_of(setting, value) == []


@pytest.mark.parametrize("value", ["${nowhere}", "${oc.env:SHOWATTENDTELL_NOT_SET_ANYWHERE}"])
def test_an_interpolation_that_leads_nowhere_is_reported(value: str):
    output = " ".join(faults_of("decoder.dropout", value))
    assert "decoder.dropout" in output
    assert "nowhere" in output.lower() or "NOT_SET_ANYWHERE" in output


@pytest.mark.parametrize("target", ["os.system", "sys.exit", "nosuchpackage.Thing", "torch.optim.Adagard", 3, None])
def test_a_target_that_is_none_is_reported(target: Any):
    [fault] = validate(OmegaConf.create({"decoder": {"_target_": target, "command": "true"}}))
    assert f"decoder._target_={'null' if target is None else target}" in fault


def test_nested_targets_are_checked_instead_of_being_taken_for_values():
    inner = {"_target_": TARGETS["decoding"], "beam_size": 0}
    config = {"decoder": {"_target_": TARGETS["decoder"], "hidden_dim": inner}}
    assert validate(OmegaConf.create(config)) == ["decoder.hidden_dim.beam_size=0 should be greater than 0"]


WRONG = {
    "beam_size": [0, -3, 1.5, "x", True, None, [1], 10_001],
    "max_length": [0, -1, "3", 2.5, 10**9],
    "num_captions": [10_001],
    "forbidden": ["dog", None, [5], [None], [""], {"dog": 1}],
    "allow_unk": ["no", 1],
    "length_penalty": [0, float("nan"), "a"],
    "length_normalization": ["x", 3],
    "precision": ["float99"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_an_argument_in_python_is_refused_as_on_the_command_line(name: str, value: Any):
    with pytest.raises(UserError) as in_python:
        BeamSearch(**{name: value})
    if value == "dog":
        assert str(in_python.value) == f"{name}=dog should be a list"
    else:
        [on_command_line] = faults_of(f"decoding.{name}", value)
        assert str(in_python.value) == on_command_line.replace("decoding.", "")


@pytest.mark.parametrize(
    ("command", "arguments", "name", "value"),
    [
        ("train", ["decoder.output=word"], "decoder.output", ["word"]),
        ("train", ["trainer.devices=2"], "trainer.devices", 2),
        ("train", ["tags=mine"], "tags", ["mine"]),
        ("evaluate", ["checkpoint=a.ckpt", "metrics=bleu"], "metrics", ["bleu"]),
        ("evaluate", ["checkpoint=a.ckpt"], "checkpoint", "a.ckpt"),
        ("caption", ["formats=png"], "formats", ["png"]),
        ("report", ["runs=runs", "columns=bleu4"], "columns", ["bleu4"]),
    ],
)
def test_a_single_value_is_a_list_where_only_a_list_is_meant(command: str, arguments: list[str], name: str, value: Any):
    assert OmegaConf.select(DictConfig(checked(compose(command, arguments))), name) == value


HERE = [
    {
        **{"cache=new": "HERE/new", "init_from=a.ckpt": "HERE/a.ckpt", "encoder.weights=a.ckpt": "HERE/a.ckpt"},
        **{"dataset.root=data": "HERE/data", "dataset.captions=a.csv": "HERE/a.csv"},
        **{"dataset.images=random": "HERE/random", "dataset.splits=data": "HERE/data"},
        "distillation.captions=a*.csv": "HERE/a*.csv",
    },
    {
        "init_from=flickr8k_soft": "flickr8k_soft",
        "encoder.weights=random": "random",  # also if there is a folder of this name
        "dataset.captions=b.csv": "b.csv",  # it is in the data set's folder
        "distillation.captions=[a.csv,/b.csv]": ["HERE/a.csv", "/b.csv"],
    },
    {
        **{"encoder.weights='wheel:package'": "wheel:package", "dataset.root=missing": "HERE/missing"},
        "dataset.captions=missing.csv": "missing.csv",
    },
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files that settings name."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "random"):
        Path(folder).mkdir()
    for file in ("a.ckpt", "a.csv", "b.csv", "data/b.csv", "entities.zip"):
        Path(file).touch()
    return tmp_path


@pytest.mark.parametrize("paths", HERE)
def test_a_path_means_where_the_command_is_typed(here: Path, paths: dict[str, Any]):
    config = DictConfig(checked(compose("train", ["dataset=custom", "dataset.root=data", *paths])))
    for setting, meant in paths.items():
        found = OmegaConf.select(config, setting.partition("=")[0])
        assert found == json.loads(json.dumps(meant).replace("HERE", str(here))), setting


@pytest.mark.parametrize("module", [Flickr8kDataModule, Flickr30kDataModule])
def test_a_path_in_python_means_where_it_is_given(here: Path, module: type[FolderDataModule]):
    stored = module("data", entities="entities.zip", images="missing", cache="new").settings()
    assert stored["cache"] == str(here / "new")
    paths = [stored["dataset"][name] for name in ("root", "entities", "images")]
    assert paths == [str(here / "data"), str(here / "entities.zip"), "missing"]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (Sampling, {"max_length": 0}),
        (Consensus, {"max_length": 0}),
        (load, {"max_length": 0}),
        (load, {"checkpoint": []}),
        (load, {"checkpoint": 5}),
        (load, {"seed": -1}),
        (load, {"decoding": {"beam_size": 3}}),
        (load, {"attention_mode": "x"}),
        (CaptioningModule, {"hidden_dim": 0}),
        (CaptioningModule, {"dropout": 5.0}),
        (ReaderDataModule, {"read": dict, "encoder": "resnet18", "batch_size": 0}),
        (Encoder, {"network": "resnet18", "size": -1}),
        (Encoder, {"network": "resnet18", "crop_mode": "x"}),
    ],
)
def test_an_argument_with_a_wrong_value_is_named(call: Callable[..., Any], arguments: dict[str, Any]):
    name = [*arguments][-1]
    with pytest.raises(UserError, match=rf"^{name}=.* should "):
        call(**arguments)
