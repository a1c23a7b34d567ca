"""A Ray cluster of the tests' own."""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_cluster import ray_cluster


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths are 107 characters at most."""
    if find_spec("ray") is None:
        pytest.skip("needs the extra ray")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield Path(folder)


@pytest.fixture
def cluster(tmp_path: Path, short_folder: Path) -> Iterator[str]:
    """The address of a Ray cluster."""
    with ray_cluster(tmp_path, short_folder) as address:
        yield address
