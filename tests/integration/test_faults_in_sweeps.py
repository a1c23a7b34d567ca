"""A sweep whose cluster is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import light_command
import pytest
from ray_cluster import OWN_RAY, free_ports, wait_until
from test_launchers import start, sweep


@pytest.mark.slow
def test_a_cluster_that_is_gone_ends_the_sweep_which_continues_without_it(tmp_path: Path, short_folder: Path):
    """Its head is killed while a run is in progress. Ray itself ends the process of the sweep then, with a sentence."""
    line = ["hydra/launcher=ray", f"seed={light_command.HELD},20", "hydra.sweep.dir=runs/ray"]
    address, _ = free_ports(2)
    head = ray_head(address, short_folder, tmp_path)
    try:
        process = start(tmp_path, *line, RAY_ADDRESS=f"127.0.0.1:{address}")
        wait_until((tmp_path / "held").exists)
    finally:
        os.killpg(head.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "Traceback" not in out + err
    assert "Failed to connect to GCS" in err
    (tmp_path / "go").touch()
    done = sweep(tmp_path, *line[1:])
    assert done.returncode == 0, done.stderr
    assert "11.5" in done.stdout
    assert "20.5" in done.stdout


def ray_head(address: int, folder: Path, elsewhere: Path) -> subprocess.Popen[str]:
    """A Ray cluster of this machine, in a process group of its own."""
    options = ["--head", "--block", f"--port={address}", "--num-cpus=2", "--object-store-memory=80000000"]
    options += ["--include-dashboard=false", f"--temp-dir={folder}"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", *options],
        cwd=elsewhere,
        env={**os.environ, **OWN_RAY, "SHOWATTENDTELL_CACHE": str(elsewhere)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert any("Ray runtime started" in line for line in process.stdout or ())
    return process
