"""What the tests of whole runs share: small settings, and what to expect of a command."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from showattendtell.data.shapes import read_shapes
from showattendtell.records import Example

SIZES = {"train": 40, "val": 10, "test": 10}
TINY = [f"dataset.{split}={size}" for split, size in SIZES.items()]
TINY += ["trainer.max_epochs=1", "attention.score.width=16", "decoder.embedding_dim=16", "decoder.hidden_dim=32"]
STEPWISE = [*TINY, "trainer.max_epochs=3", "trainer.limit_train_batches=6", "trainer.limit_val_batches=2"]
STEPWISE += ["decoder.dropout=0.5", "checkpoint_every=0"]

Run = Callable[..., Any]
"""Runs a command and gives its `status`, `out` and `err`; see tests/conftest.py."""

Start = Callable[..., Any]
"""Begins one, to be ended by `finish`."""


def assert_told(done: Any, *words: str) -> None:
    """The command failed as a user's fault does: status 2, one sentence that holds the words, no traceback."""
    assert "Traceback" not in done.err + done.out
    assert done.status == 2
    assert done.err.count("error: ") == 1
    sentence = done.err.strip().splitlines()[-1]
    assert sentence.startswith("error: ")
    for word in words:
        assert word in sentence, sentence


def assert_done(done: Any) -> Any:
    assert done.status == 0, done.err
    return done


def held_out(folder: Path) -> tuple[Example, ...]:
    return read_shapes(str(folder / "cache/shapes"), **SIZES).split("test")


def validated(folder: Path) -> tuple[Example, ...]:
    return read_shapes(str(folder / "cache/shapes"), **SIZES).split("val")


def last_written(run: Path) -> int:
    """0 where there is no checkpoint; it may get another name at any moment."""
    try:
        return (run / "last.ckpt").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def wait_for_steps(running: Any, run: Callable[[], Path | None], number: int) -> None:
    """Until the run has written so many checkpoints, or ended."""
    seen, before = -1, None
    while seen < number and running.process.is_alive():
        folder = run()
        now = last_written(folder) if folder else 0
        if now != before:
            seen, before = seen + 1, now
        time.sleep(0.002)


def kill(running: Any, number: signal.Signals = signal.SIGKILL) -> Any:
    if running.process.is_alive():
        os.kill(running.process.pid, number)
    return running.finish()


def assert_same_end(whole: Path, rest: Path) -> None:
    for name in ("last.ckpt", "best.ckpt"):
        one, other = (torch.load(run / name, weights_only=True)["state_dict"] for run in (whole, rest))
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert (whole / "metrics.csv").read_text() == (rest / "metrics.csv").read_text()
    assert {file.name for file in whole.iterdir()} == {file.name for file in rest.iterdir()}
    assert [file for file in rest.rglob("*") if ".tmp" in file.name or file.name == "previous.ckpt"] == []
