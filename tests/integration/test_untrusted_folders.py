"""Untrusted folders, opened by real commands: nothing in them is executed."""

import json
import os
import pickle
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from existing_files import snapshot
from PIL import Image
from runs import Evil, Run, assert_done, assert_error
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.inference.pipeline import load

SECRET = "a-password-in-the-environment"


@pytest.fixture
def stranger(tmp_path: Path, trained: Any, folder: Path) -> Callable[..., Path]:
    """Writes the folder `run` of a run that was stopped, with other settings in it, and a pickle in two forms."""

    def write(**parts: dict[str, Any]) -> Path:
        content = torch.load(folder / "runs/first/last.ckpt", weights_only=True)
        config = content["showattendtell"]["config"]
        for part, settings in parts.items():
            config[part] |= settings
        content["callbacks"]["LastCheckpoint"]["finished"] = False
        run = tmp_path / "run"
        run.mkdir()
        torch.save(content, run / "last.ckpt")
        torch.save(Evil(tmp_path / "it-ran"), tmp_path / "payload")
        (tmp_path / "pickled").write_bytes(pickle.dumps(Evil(tmp_path / "it-ran")))
        return run

    return write


@pytest.fixture
def resume(run_forked: Run, tmp_path: Path, folder: Path) -> Run:
    """Resumes that run, with further settings."""
    return partial(run_forked, "train", "resume=run", folder=tmp_path, SHOWATTENDTELL_CACHE=str(folder / "cache"))


ATTACKS: dict[str, dict[str, Any]] = {
    "a schedule": {"_target_": "torch.load", "f": "payload", "weights_only": False},
    "joblib": {"_target_": "joblib.load", "filename": "pickled"},
    "a copy": {"_target_": "shutil.copyfile", "src": "pickled", "dst": "it-ran"},
}


@pytest.mark.parametrize("attack", slow_after(1, ATTACKS.values()), ids=ATTACKS)
def test_the_settings_in_a_folder_run_nothing(resume: Run, stranger: Any, tmp_path: Path, attack: dict[str, Any]):
    stranger(schedule=attack)
    done = resume()
    assert not (tmp_path / "it-ran").exists()
    assert_error(done, "last.ckpt", "do not trust the file")


@pytest.mark.slow
def test_processes_that_train_together_run_nothing_either(resume: Run, stranger: Any, tmp_path: Path):
    stranger(schedule=ATTACKS["a schedule"])
    done = resume("trainer.devices=2", "trainer.accelerator=cpu")
    assert not (tmp_path / "it-ran").exists()
    assert_error(done, "last.ckpt", "torch.load")


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    slow_after(
        1,
        [
            ("decoder", {"hidden_dim": 10**9}, "do not fit its settings"),
            ("encoder", {"network": "vit_7b_patch16_dinov3", "stride": 16}, "do not fit its settings"),
            ("attention", {"_partial_": True}, "attention._partial_ is for an argument of a part"),
            ("trainer", {"devices": 1000}, "other settings: trainer.devices=1 instead of 1000"),
        ],
    ),
)
def test_a_folder_asks_for_no_memory_and_no_processes(
    resume: Run, stranger: Any, part: str, changes: dict[str, Any], words: str
):
    stranger(**{part: changes})
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert_error(resume(), words)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before < 1_000_000


REPLACED = ("metrics.csv", "times.csv", "learning_curve.png", "best.ckpt")
"""Files of a run that are written under another name, and then get theirs."""


@pytest.mark.parametrize("name", slow_after(1, ["train.log", ".lock", ".hydra"]))
def test_a_run_writes_to_nothing_that_a_link_names(resume: Run, stranger: Any, tmp_path: Path, name: str):
    run, mine = stranger(), tmp_path / "mine"
    mine.mkdir()
    for other in REPLACED:
        (mine / other).write_text("mine")
        (run / other).symlink_to(mine / other)
    place = mine if name == ".hydra" else mine / "profile"
    if place != mine:
        place.write_text("mine")
    (run / name).symlink_to(place)
    before = snapshot(mine)
    assert_error(resume("trainer.max_epochs=2"), f"run/{name}: it is a symbolic link; remove it")
    (run / name).unlink()
    assert_done(resume("trainer.max_epochs=2"))
    assert snapshot(mine) == before


@pytest.mark.parametrize("name", slow_after(1, ["train.log", ".lock", "last.ckpt"]))
def test_a_run_waits_for_no_pipe(resume: Run, stranger: Any, name: str):
    run = stranger()
    (run / name).unlink(missing_ok=True)
    for other in (name, "times.csv", "previous.ckpt"):
        os.mkfifo(run / other)
    assert_error(resume(), "has no last.ckpt" if name == "last.ckpt" else f"run/{name}: it is a pipe or device")


def test_readers_of_photographs_are_those_of_the_command_line(resume: Run, stranger: Any):
    stranger(data={"num_workers": 10**5}, features={"workers": 10**5})
    assert_done(resume())


def test_a_checkpoint_does_not_read_the_environment(run_forked: Run, altered: Callable[..., Path], folder: Path):
    interpolation = "${oc.env:SECRET} ${oc.decode:${oc.env:SECRET}}"

    def plant(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"]["init_from"] = interpolation

    file = altered(plant)
    environment = {"SHOWATTENDTELL_CACHE": str(folder / "cache"), "SECRET": SECRET}
    assert_done(run_forked("evaluate", f"checkpoint={file}", "metrics=[bleu]", folder=folder, **environment))
    text = file.with_name("results-test.json").read_text()
    assert SECRET not in text
    assert json.loads(text)["config"]["init_from"] == interpolation


def replaced(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def replace(content: dict[str, Any]) -> None:
        *above, last = path
        for name in above:
            content = content[name]
        content[last] = value

    return replace


@pytest.mark.parametrize(
    ("change", "words"),
    slow_after(
        1,
        [
            (replaced("showattendtell", "config", value={}), "were altered"),
            (replaced("callbacks", value=None), "was altered"),
            (replaced("global_step", value="\x1b[31m"), "was altered"),
            (
                replaced("callbacks", "LastCheckpoint", "random", value={"0": {}}),
                "cannot be resumed (KeyError: 'python')",
            ),
            (replaced("optimizer_states", value=None), "cannot be resumed (TypeError"),
            (replaced("loops", value={}), "cannot be resumed (KeyError"),
            (replaced("CaptionDataModule", value={}), "cannot be resumed (KeyError"),
            (
                replaced("callbacks", "EpochReport", "rows", value=[{"epoch": 0.5, "step": 10, "val/bleu4": 1.0}]),
                "cannot be resumed (ValueError: invalid literal for int() with base 10: '0.5')",
            ),
            (
                replaced("CaptionDataModule", "batches", value=10**15),
                "cannot be resumed (ValueError: its epoch has had",
            ),
            (replaced("state_dict", value={"evil": torch.zeros(1)}), "do not fit its settings"),
        ],
    ),
    ids=["config", "callbacks", "step", "random states", "optimizer", "loops", "data", "rows", "batches", "weights"],
)
def test_an_altered_run_is_reported_in_one_sentence(
    resume: Run, stranger: Any, change: Callable[[dict[str, Any]], None], words: str
):
    file = stranger(trainer={"max_epochs": 2}) / "last.ckpt"
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)
    assert_error(resume(), "last.ckpt", words)


def test_a_network_that_is_not_in_the_file_is_not_built(altered: Callable[..., Path]):
    """It has 6.7 billion weights."""
    file = altered(replaced("showattendtell", "config", "encoder", "network", value="vit_7b_patch16_dinov3"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError):
        load(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


def test_a_checkpoint_without_weights_of_its_encoder_names_those_of_a_package(altered: Callable[..., Path]):
    def strip(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"]["encoder"]["weights"] = "random"
        content["state_dict"] = {name: own for name, own in content["state_dict"].items() if name[:8] != "encoder."}

    with pytest.raises(UserError, match="it has no weights of its encoder"):
        load(altered(strip))


@pytest.mark.slow
def test_names_of_strangers_are_no_commands_for_the_terminal(run_forked: Run, checkpoint: Path, tmp_path: Path):
    (tmp_path / "photographs").mkdir()
    for name in ("\x1b]0;title.png", "other.png"):
        Image.new("RGB", (32, 32)).save(tmp_path / "photographs" / name)
    line = ["images=photographs", f"checkpoint={checkpoint}", "formats=[png]"]
    done = assert_done(run_forked("caption", *line, folder=tmp_path))
    assert "\x1b" not in done.out + done.err
    assert "\\x1b]0;title.png\t" in done.out
