"""A Ray cluster of the tests' own."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_cluster import OWN_RAY, command_lines
from runs import wait_until


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths are 107 characters at most."""
    if find_spec("ray") is None:
        pytest.skip("needs the extra ray")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield Path(folder)


@pytest.fixture
def cluster(tmp_path: Path, short_folder: Path) -> Iterator[str]:
    """The address of a Ray cluster of two processors, started elsewhere than its users are."""
    (tmp_path / "elsewhere").mkdir()
    options = ["--head", "--block", "--port=0", "--num-cpus=2", "--object-store-memory=80000000"]
    options += ["--include-dashboard=false", f"--temp-dir={short_folder}"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", *options],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, **OWN_RAY, "SHOWATTENDTELL_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    # Ray chooses free ports itself: another process may take one that is chosen before
    addresses = (re.search("--address='(.+)'", line) for line in process.stdout)
    address = next(filter(None, addresses), None)
    assert address, "Ray has not started"
    yield address[1]
    process.terminate()
    process.communicate()
    wait_until(lambda: not any(str(short_folder) in line for line in command_lines().values()))
    assert not list((tmp_path / "elsewhere").iterdir())
