"""Sweeps on a Ray cluster: runs at once, next to failing ones, and after the end of the cluster."""

import os
import signal
from functools import partial
from pathlib import Path

import light_command
import pytest
import test_launchers
from ray_cluster import OWN_RAY, start_head
from runs import wait_until

SMALL = "+hydra.launcher.ray.init.num_cpus=2 +hydra.launcher.ray.init.include_dashboard=false "
SMALL += "hydra.launcher.ray.init.object_store_memory=80000000"

pytestmark = pytest.mark.slow


def test_runs_continue_at_once_and_next_to_failing_ones(tmp_path: Path, short_folder: Path):
    environment = {**OWN_RAY, "RAY_TMPDIR": str(short_folder)}
    test_launchers.assert_runs_continue(tmp_path, "ray", "1", light_command.BROKEN, settings=SMALL, **environment)


def test_trainings_at_once_share_one_store(tmp_path: Path, cluster: str):
    test_launchers.assert_trainings_share_one_store(tmp_path, "ray", **OWN_RAY, RAY_ADDRESS=cluster)


def test_a_cluster_that_is_gone_ends_the_sweep_which_continues_without_it(tmp_path: Path, short_folder: Path):
    """Its head is killed while a run is in progress. Ray itself ends the process of the sweep then, with a sentence."""
    start, sweep = partial(test_launchers.start, **OWN_RAY), partial(test_launchers.sweep, **OWN_RAY)
    seeds = f"seed={light_command.HELD},20"
    line = ["hydra/launcher=ray", seeds, "hydra.sweep.dir=runs/ray", f"cache={tmp_path}"]  # that of the head differs
    address, head = start_head(tmp_path, short_folder)
    try:
        process = start(tmp_path, *line, RAY_ADDRESS=address)
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
