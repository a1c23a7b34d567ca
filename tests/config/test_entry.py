"""How a command ends where it can't run, and that it trusts whom its user names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ANSWER = "the class that the user named was built"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the user stands: with a file in the way, and a module of their own."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "own.py").write_text(
        f"class Data:\n    def __init__(self, root='', **sizes): raise ValueError({ANSWER!r})\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "word"),
    [("hydra.run.dir=file/run", "file/run: "), ("hydra.run.dir=file", "file: "), ("--config-name=foo", "'foo'")],
)
def test_a_run_that_hydra_cannot_start_ends_in_a_sentence(
    run_forked: Callable[..., Any], folder: Path, setting: str, word: str
):
    done = run_forked("train", setting, folder=folder)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert word in done.err
    assert len(done.err.splitlines()) == 1


def test_a_class_of_ones_own_that_the_command_line_names_is_built(run_forked: Callable[..., Any], folder: Path):
    done = run_forked(
        "prepare", "dataset._target_=own.Data", folder=folder, first=f"sys.path.insert(0, {str(folder)!r})"
    )
    assert done.status == 2
    assert ANSWER in done.err
