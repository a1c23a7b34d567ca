"""The commands of the documentation, in a folder with all files that they name."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_folder import Run, fill_folder

os.environ.pop("WANDB_SERVICE", None)


@pytest.fixture(scope="session")
def filled_folder(tmp_path_factory: pytest.TempPathFactory, run_forked: Run) -> Iterator[Path]:
    """The folder with all files that the documentation names."""
    folder = tmp_path_factory.mktemp("filled_folder")
    fill_folder(folder, _in(folder, run_forked))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(filled_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """The same for a page of its own, which leaves nothing: checkpoints fill a disk."""
    yield Path(shutil.copytree(filled_folder, tmp_path / "user"))
    shutil.rmtree(tmp_path / "user")


@pytest.fixture
def run(folder: Path, run_forked: Run) -> Run:
    return _in(folder, run_forked)


def _in(folder: Path, run_forked: Run) -> Run:
    """A command of the user's; what starts further processes does so from one that was not forked."""
    environment = {"SHOWATTENDTELL_CACHE": str(folder / "cache"), "WANDB_MODE": "offline"}
    here = "sys.path.insert(0, '')"  # as `python -m` does, so that the user's own module is found

    def run(command: str, *arguments: str, **variables: str) -> Any:
        own = {**environment, **variables}
        if not any(argument.startswith(("hydra/launcher=", "trainer=ddp")) for argument in arguments):
            return run_forked(command, *arguments, folder=folder, first=here, **own)
        line = [sys.executable, "-m", f"showattendtell.{command}", *arguments]
        done = subprocess.run(line, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True)
        return SimpleNamespace(status=done.returncode, out=done.stdout, err=done.stderr)

    return run
