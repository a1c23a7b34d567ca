"""Runs that are killed, and whether a resumed one ends as the uninterrupted one does."""

import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback

from showattendtell.runtime.files import BEST, LAST


class Kills(Callback):
    """Copies the run's folder as a kill would leave it, before each batch if something new was saved."""

    def __init__(self, folder: Path, copies: Path):
        self._folder, self._copies = folder, copies
        self._seen = 0

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._copy(f"{trainer.global_step:02}")

    def on_validation_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._copy(f"{trainer.global_step:02}-validation")

    def _copy(self, name: str) -> None:
        last = self._folder / LAST
        if last.exists() and last.stat().st_mtime_ns != self._seen:
            self._seen = last.stat().st_mtime_ns
            shutil.copytree(self._folder, self._copies / name)


def assert_same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [name for name, value in one.items() if not torch.equal(value, other[name])] == []


def read(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)


def callbacks_of(folder: Path) -> dict[str, Any]:
    """What the callbacks remember at the end, less the folder's name."""
    states = read(folder / LAST)["callbacks"]
    [best] = [state for name, state in states.items() if name.startswith("BestCheckpoint")]
    [stop] = [state for name, state in states.items() if name.startswith("EarlyStopping")]
    return {"best": best["best_model_score"], "stop": stop, "rows": states["EpochReport"]["rows"]}


def assert_ends_as(whole: Path, rest: Path) -> None:
    assert_same_weights(read(whole / LAST)["state_dict"], read(rest / LAST)["state_dict"])
    assert_same_weights(read(whole / BEST)["state_dict"], read(rest / BEST)["state_dict"])
    ends = [read(folder / LAST) for folder in (whole, rest)]
    for part in ("optimizer_states", "lr_schedulers", "epoch", "global_step"):
        assert repr(ends[0][part]) == repr(ends[1][part])
    assert callbacks_of(whole) == callbacks_of(rest)
    assert (whole / "metrics.csv").read_bytes() == (rest / "metrics.csv").read_bytes()
    assert {file.name for file in rest.iterdir()} == {BEST, LAST, "metrics.csv", "times.csv"}
