"""Sweeps on a Ray cluster: runs at once, next to failing ones, and after the end of the cluster."""

from pathlib import Path

import light_command
import pytest
import test_launchers
from ray_cluster import OWN_RAY

SMALL = "+hydra.launcher.ray.init.num_cpus=2 +hydra.launcher.ray.init.include_dashboard=false "
SMALL += "hydra.launcher.ray.init.object_store_memory=80000000"

pytestmark = pytest.mark.slow


def test_runs_continue_at_once_and_next_to_failing_ones(tmp_path: Path, short_folder: Path):
    environment = {**OWN_RAY, "RAY_TMPDIR": str(short_folder)}
    test_launchers.assert_runs_continue(tmp_path, "ray", "1", light_command.BROKEN, settings=SMALL, **environment)


def test_trainings_at_once_share_one_store(tmp_path: Path, cluster: str):
    test_launchers.assert_trainings_share_one_store(tmp_path, "ray", **OWN_RAY, RAY_ADDRESS=cluster)
