"""A user who follows the documentation."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stage import Run, furnish

os.environ.pop("WANDB_SERVICE", None)


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory, run_forked: Run) -> Path:
    """The folder in which everything is that the documentation names."""
    folder = tmp_path_factory.mktemp("furnished")
    furnish(folder, _in(folder, run_forked))
    return folder


@pytest.fixture
def folder(furnished: Path, tmp_path: Path) -> Path:
    """The same for a page of its own."""
    return Path(shutil.copytree(furnished, tmp_path / "user"))


@pytest.fixture
def run(folder: Path, run_forked: Run) -> Run:
    return _in(folder, run_forked)


def _in(folder: Path, run: Run) -> Any:
    environment = {"SHOWATTENDTELL_CACHE": str(folder / "cache"), "WANDB_MODE": "offline"}
    here = "sys.path.insert(0, '')"  # as `python -m` does, so that the user's own module is found
    return partial(run, folder=folder, first=here, **environment)
