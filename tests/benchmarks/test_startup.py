"""The start-up benchmark, with a small vocabulary and one run of each command."""

import sys
from argparse import Namespace
from contextlib import chdir
from pathlib import Path

import pytest

from benchmarks import startup
from showattendtell.config.compose import compose


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORDS", 40), ("REPEATS", 1), ("COMMANDS", ["score"])):
        monkeypatch.setattr(startup, name, value)


NAMES = [startup.SLOWEST, startup.IMPORT, startup.CAPTION, startup.LOAD, "score --help"]


def measured() -> list[str]:
    """The names of the figures that are positive numbers of seconds."""
    figures = startup.measure(Namespace(threads=1)).figures
    return [figure.name for figure in figures if figure.unit == "s" and figure.value and figure.value > 0]


def test_the_checkpoint_captions_and_every_command_is_valid(monkeypatch: pytest.MonkeyPatch):
    def run_here(folder: Path, variables: dict[str, str], kind: str, code: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [kind, *arguments])
        with chdir(folder):
            if kind == "-c":
                exec(code)
            else:
                settings = [argument for argument in arguments if "=" in argument]
                compose(code.removeprefix("showattendtell."), settings, complete=False)

    monkeypatch.setattr(startup, "run_python", run_here)
    assert measured() == NAMES
