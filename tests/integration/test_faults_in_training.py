"""Failures of training after the first checkpoint: an error message, and the run can be resumed."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from runs import STEPWISE, Start, assert_done, assert_error, assert_same_end

from showattendtell.loading.checkpoints import find_damage
from showattendtell.runtime.files import BEST, LAST, METRICS

Train = Callable[..., Any]

TIME_LIMIT = 900
"""Seconds within which a run ends that takes a few, on a machine that has much else to do."""

IN_BATCH = """
from showattendtell.datamodules.datasets import CaptionDataset
read, numbers = CaptionDataset.__getitem__, iter(range(10**9))
def read_or_fail(self, item):
    if not isinstance(item, list) and next(numbers) == {number}:
        {fault}
    return read(self, item)
CaptionDataset.__getitem__ = read_or_fail
"""
"""What happens when a training batch is read, counted from 0; an epoch has six."""


@pytest.fixture
def train(start: Start) -> Train:
    """A training, to its end or the time limit."""

    def run(*settings: str, first: str = "") -> Any:
        running = start("train", *settings, first=first)
        running.process.join(TIME_LIMIT)
        assert running.process.exitcode is not None, "the run does not end"
        return running.finish()

    return run


def content(folder: Path) -> dict[str, bytes]:
    """Those of all files but the log, to which a refused run adds its error."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.suffix != ".log"}


def assert_whole(run: Path) -> None:
    """What was saved, and nothing else."""
    assert {BEST, LAST, METRICS} <= set(content(run))
    assert [find_damage(file) for file in run.glob("*.ckpt") if find_damage(file)] == []
    assert [file for file in run.rglob("*") if file.name.endswith(".tmp")] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS], ids=["no memory", "no shared memory"])
def test_a_process_that_reads_and_is_gone_ends_the_run(
    train: Train, uninterrupted: Path, folder: Path, number: signal.Signals
):
    """In the middle of the second epoch; SIGKILL is what a kernel sends that has no memory left."""
    name = f"runs/worker-{number.name}"
    die = IN_BATCH.format(number=9, fault=f"import os; os.kill(os.getpid(), {number.value})")
    done = train(*STEPWISE, "data.num_workers=1", f"hydra.run.dir={name}", first=die)
    done = done._replace(err=done.err.rpartition("\0")[2])  # torch reports SIGBUS too, and ends with a zero byte
    assert_error(done, "a process that reads images has ended (", "continues from the last checkpoint", "resume=true")
    assert_whole(folder / name)
    assert_done(train(f"resume={name}"))
    assert_same_end(uninterrupted, folder / name)


@pytest.fixture
def shard(folder: Path, tmp_path: Path, prepared: Any) -> Path:
    """Of the data set's stored grids, in a copy of the cache; other tests may have stored others, with longer names."""
    shutil.copytree(folder / "cache", tmp_path / "cache")
    return min((tmp_path / "cache/features").glob("shapes-*/*/00000.npy"), key=lambda file: len(file.parent.name))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_grids_that_are_cut_off_while_training_reads_them_are_reported(
    train: Train, shard: Path, uninterrupted: Path, tmp_path: Path, workers: int
):
    whole = shard.read_bytes()
    settings = [*STEPWISE, f"data.num_workers={workers}", f"cache={shard.parents[3]}", f"hydra.run.dir={tmp_path}/run"]
    cut = IN_BATCH.format(number=9, fault=f"import os; os.truncate('{shard}', 1000)")
    assert_error(train(*settings, first=cut), f"{shard.parent} is damaged (00000.npy ends too early)")
    assert_whole(tmp_path / "run")
    shard.write_bytes(whole)
    assert_done(train(f"resume={tmp_path}/run"))
    assert_same_end(uninterrupted, tmp_path / "run")


@pytest.fixture
def disk(killed: Path, tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB with the run that was killed, and a file of a user's for the rest."""
    with small_disk(tmp_path / "disk", "8m") as place:
        shutil.copytree(killed, place / "run")
        yield place


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 200_000], ids=["nothing fits", "no checkpoint fits"])
def test_a_full_disk_ends_the_run_and_leaves_all_that_was_there(
    train: Train, disk: Path, uninterrupted: Path, room: int
):
    before = content(disk / "run")
    fill(disk, room)
    done = train(f"resume={disk}/run")
    assert_error(done, f"{disk}/run/{LAST}", "No space left on device")
    assert (f"warning: {disk}/run/{METRICS} cannot be written" in done.err) == (room == 0)
    after = content(disk / "run")
    assert after.keys() == before.keys()
    assert [name for name in after if name != METRICS and after[name] != before[name]] == []
    (disk / "others").unlink()
    assert_done(train(f"resume={disk}/run"))
    assert_same_end(uninterrupted, disk / "run")
