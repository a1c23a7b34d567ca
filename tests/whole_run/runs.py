"""What the tests of whole runs share: small settings, and what to expect of a command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from showattendtell.data.shapes import read_shapes
from showattendtell.records import Example

SIZES = {"train": 40, "val": 10, "test": 10}
TINY = [f"dataset.{split}={size}" for split, size in SIZES.items()]
TINY += ["trainer.max_epochs=1", "attention.score.width=16", "decoder.embedding_dim=16", "decoder.hidden_dim=32"]

Run = Callable[..., Any]
"""Runs a command and gives its `status`, `out` and `err`; see tests/conftest.py."""


def assert_told(done: Any, *words: str) -> None:
    """The command failed as a user's fault does: status 2, one sentence that holds the words, no traceback."""
    assert "Traceback" not in done.err + done.out
    assert done.status == 2
    assert done.err.count("error: ") == 1
    sentence = done.err.strip().splitlines()[-1]
    assert sentence.startswith("error: ")
    for word in words:
        assert word in sentence


def assert_done(done: Any) -> Any:
    assert done.status == 0, done.err
    return done


def held_out(folder: Path) -> tuple[Example, ...]:
    return read_shapes(str(folder / "cache/shapes"), **SIZES).split("test")


def validated(folder: Path) -> tuple[Example, ...]:
    return read_shapes(str(folder / "cache/shapes"), **SIZES).split("val")
