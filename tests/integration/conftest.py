"""A working directory, and the small training run that most tests use."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_cluster import ray_cluster
from runs import STEPWISE, TINY, Run, Start, assert_done, kill, wait_for_steps


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the commands."""
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="session")
def run(run_forked: Run, folder: Path) -> Run:
    """Run a command there."""
    return partial(run_forked, folder=folder, SHOWATTENDTELL_CACHE=str(folder / "cache"))


@pytest.fixture(scope="session")
def prepared(run: Run) -> Any:
    return assert_done(run("prepare", *TINY))


@pytest.fixture(scope="session")
def trained(run: Run, prepared: Any) -> Any:
    return assert_done(run("train", *TINY, "hydra.run.dir=runs/first"))


@pytest.fixture(scope="session")
def checkpoint(trained: Any, folder: Path) -> Path:
    return folder / "runs/first/best.ckpt"


@pytest.fixture
def altered(checkpoint: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """A copy of the checkpoint in which a function has changed something."""

    def alter(change: Callable[[dict[str, Any]], None]) -> Path:
        content = torch.load(checkpoint, weights_only=True)
        change(content)
        torch.save(content, tmp_path / "altered.ckpt")
        return tmp_path / "altered.ckpt"

    return alter


@pytest.fixture(scope="session")
def start(start_forked: Start, folder: Path) -> Start:
    """Start a command there."""
    return partial(start_forked, folder=folder, SHOWATTENDTELL_CACHE=str(folder / "cache"))


@pytest.fixture(scope="session")
def uninterrupted(run: Run, prepared: Any, folder: Path) -> Path:
    assert_done(run("train", *STEPWISE, "hydra.run.dir=runs/uninterrupted"))
    return folder / "runs/uninterrupted"


@pytest.fixture
def killed(start: Start, uninterrupted: Path, folder: Path) -> Path:
    """A run that was killed."""
    run = folder / "runs/killed"
    if not run.exists():
        running = start("train", *STEPWISE, "hydra.run.dir=runs/killed")
        wait_for_steps(running, lambda: run, 4)
        kill(running)
    return run


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths are 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield Path(folder)


@pytest.fixture
def cluster(tmp_path: Path, short_folder: Path) -> Iterator[str]:
    """The address of a Ray cluster."""
    with ray_cluster(tmp_path, short_folder) as address:
        yield address
