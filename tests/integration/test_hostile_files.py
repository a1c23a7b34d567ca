"""Every command that reads a file of others says in one sentence that it is no file of its kind."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from extension_cases import cases
from PIL import Image
from runs import Evil, Run, assert_error
from slow_cases import slow_after
from small_results import result, write

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import WEIGHTS
from showattendtell.loading.hub import CONFIG, bundled_models
from showattendtell.loading.models import load_model
from showattendtell.results.files import read_result

BUNDLED = bundled_models()["flickr8k_soft"]


def written(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def saved(content: Any) -> Callable[[Path], Any]:
    return lambda path: torch.save(content, path)


def folder_with(config: bytes) -> Callable[[Path], Any]:
    """A model folder with the weights of the bundled model."""

    def write(path: Path) -> None:
        path.mkdir()
        (path / CONFIG).write_bytes(config)
        (path / WEIGHTS).symlink_to(BUNDLED / WEIGHTS)

    return write


MODELS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "text": written(b"a dog"),
    "empty": written(b""),
    "YAML": written(b"a: " + b"[" * 100_000),
    "zip of nothing": written(b"PK\x05\x06" + bytes(18)),
    "another checkpoint": saved({"state_dict": {}}),
    "metadata of numbers": saved({"showattendtell": {"format": 3, "config": 5}, "state_dict": {}}),
    "folder of nothing": Path.mkdir,
    "nested JSON": folder_with(b"[" * 100_000),
    "JSON of a huge number": folder_with(b'{"a": ' + b"9" * 5000 + b"}"),
    "JSON of another encoding": folder_with(b"\xff\xfe{"),
}


@pytest.mark.parametrize("form", MODELS)
def test_a_model_that_is_none_is_reported(tmp_path: Path, form: str):
    MODELS[form](tmp_path / "hostile")
    with pytest.raises(UserError, match="hostile") as error:
        load_model(str(tmp_path / "hostile"), "cpu", BeamSearch())
    assert str(error.value).isprintable()


MODEL_COMMANDS = [
    ["caption", "checkpoint=hostile", "images=a.png"],
    ["train", "init_from=hostile", "dataset.train=8", "dataset.val=2"],
    ["evaluate", "checkpoint=hostile"],
    ["average", "checkpoint=[hostile,hostile]", "output=new.ckpt"],
    *cases("MODEL_COMMANDS").values(),
]


@pytest.mark.parametrize("command", slow_after(2, MODEL_COMMANDS))
def test_a_command_reports_a_model_that_is_none(run_forked: Run, tmp_path: Path, command: list[str]):
    MODELS["metadata of numbers"](tmp_path / "hostile")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert_error(run_forked(*command, folder=tmp_path), "hostile")


@pytest.mark.parametrize("command", [["report", "results-test.json"], ["score", "hypotheses=results-test.json"]])
def test_a_command_reports_a_result_file_that_is_none(run_forked: Run, tmp_path: Path, command: list[str]):
    (tmp_path / "results-test.json").write_bytes(b"[" * 100_000)
    assert_error(run_forked(*command, folder=tmp_path), "results-test.json")


@pytest.mark.parametrize("number", [-(10**400), 10**4000])
def test_a_score_that_no_float_holds_is_left_out(tmp_path: Path, number: int):
    content = {**result(), "bleu4": number}
    read = read_result(write(content, tmp_path / "results-test.json"))
    assert (read.figures["bleu3"], read.figures.get("bleu4")) == (40.0, None)


@pytest.mark.parametrize(
    ("part", "target"),
    [
        ("decoder", "os.system"),
        ("tokenizer", "showattendtell.demo.subprocess.run"),
        ("dataset", "pytorch_lightning.LightningModule.load_from_checkpoint"),
        ("encoder", "showattendtell.training.module.CaptioningModule.load_from_checkpoint"),
    ],
)
def test_a_checkpoint_cannot_name_a_program_to_run(
    altered: Callable[..., Path], tmp_path: Path, part: str, target: str
):
    mark = tmp_path / "it-ran"

    def plant(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"][part] = {"_target_": target, "_args_": [["touch", str(mark)]]}

    with pytest.raises(UserError, match=f"altered.ckpt.*{target}"):
        load_model(str(altered(plant)), "cpu", BeamSearch())
    assert not mark.exists()


def test_a_pickle_in_a_checkpoint_is_not_executed(altered: Callable[..., Path], tmp_path: Path):
    mark = tmp_path / "it-ran"
    with pytest.raises(UserError, match="altered.ckpt is damaged"):
        load_model(str(altered(lambda content: content.update(more=Evil(mark)))), "cpu", BeamSearch())
    assert not mark.exists()
