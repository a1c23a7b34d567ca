"""The command `prepare` on a Ray cluster."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from grid_stores import content
from ray_cluster import OWN_RAY, workers_of
from runs import Run, Start, assert_done, assert_error, wait_until

SETTINGS = ["dataset.train=400", "dataset.val=10", "dataset.test=10"]
RAY = ["cache=two", "features.workers=2", "features=ray"]


def store(cache: Path) -> Path:
    [folder] = {shard.parent for shard in (cache / "features").glob("*/*/0*.npy")}
    return folder


@pytest.mark.slow
def test_a_cluster_writes_the_store_of_one_process_also_when_a_worker_is_killed(
    start: Start, run: Run, folder: Path, cluster: str, short_folder: Path
):
    environment = {**OWN_RAY, "RAY_ADDRESS": cluster}
    assert_done(run("prepare", *SETTINGS, "cache=one"))
    shutil.copytree(folder / "one", folder / "two", ignore=shutil.ignore_patterns("features"))
    [photograph, *_] = (folder / "two").rglob("*.png")
    whole = photograph.read_bytes()
    photograph.write_bytes(whole[:100])
    assert_error(run("prepare", *SETTINGS, *RAY, **environment), photograph.name, "dataset.skip_unreadable=true")
    photograph.write_bytes(whole)
    shutil.copystat(folder / "one" / photograph.relative_to(folder / "two"), photograph)

    shutil.rmtree(folder / "two/features")
    running = start("prepare", *SETTINGS, *RAY, **environment)
    wait_until(lambda: list((folder / "two").rglob("0*.json")) or not running.process.is_alive())
    first, _ = workers_of(short_folder, "MapWorker(MapBatches(ShardActor))")
    os.kill(first, signal.SIGKILL)
    assert not (store(folder / "two") / "store.json").exists(), "it was too late"
    assert_done(running.finish())
    assert content(store(folder / "two")) == content(store(folder / "one"))
