import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
import torch
from grid_stores import NAMES, SETTINGS, Encoding, content, plan_of, random_grids, write
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.features.store import FeatureStore, is_finished
from showattendtell.features.writer import (
    EncodedBatch,
    StorePlan,
    count_written,
    write_shards,
    write_store,
)

LARGE = {**SETTINGS, "grid": [100, 100], "dim": 50, "views": 1}
"""A grid of a megabyte."""
MEGABYTE = 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "grids"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "grids"
    write(folder)
    return content(folder)


def write_some(path: Path, batches: int, plan: StorePlan | None = None) -> list[list[str]]:
    """Write so many batches and stop; which they were."""
    plan = plan or plan_of()
    encode = Encoding(dict(plan.settings), batches=batches)
    with suppress(InterruptedError):
        write(path, plan, encode)
    return encode.done


def continue_writing(path: Path, plan: StorePlan | None = None) -> list[list[str]]:
    """Write what is left; which batches that were."""
    encode = Encoding(dict(plan.settings) if plan else SETTINGS)
    write(path, plan, encode)
    return encode.done


def test_batches_of_the_next_shards_may_be_requested_ahead(path: Path, uninterrupted: dict[str, bytes]):
    def encode(batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        return Encoding()(list(batches))

    write(path, encode=encode)
    assert content(path) == uninterrupted


@pytest.mark.parametrize("batches", [0, 1, 4, 5, 7, 11])
def test_work_continues_after_the_last_complete_shard(path: Path, uninterrupted: dict[str, bytes], batches: int):
    """A shard has five batches."""
    done = write_some(path, batches)
    assert not is_finished(path)
    assert count_written(path, plan_of()) <= sum(map(len, done))
    complete = batches // 5 * 5
    assert [image for batch in done[:complete] + continue_writing(path) for image in batch] == NAMES
    assert content(path) == uninterrupted


@pytest.mark.parametrize(
    "other",
    [
        plan_of(settings={**SETTINGS, "network": "another"}),
        plan_of(NAMES[:200]),
        plan_of(NAMES[::-1]),
        plan_of([*NAMES, "photograph 1000.jpg"]),
    ],
    ids=["network", "fewer", "turned", "more"],
)
def test_an_unfinished_store_of_other_settings_or_images_is_refused_and_kept(
    path: Path, uninterrupted: dict[str, bytes], other: StorePlan
):
    write_some(path, 6)
    with pytest.raises(UserError, match="unfinished store with other images or settings; delete the folder"):
        write(path, other)
    continue_writing(path)
    assert content(path) == uninterrupted


def slowly(path: Path, seed: int) -> None:
    """Write a store, a batch every few milliseconds."""
    pause = random.Random(seed)

    class Slow(Encoding):
        def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
            for encoded in super().__call__(batches):
                time.sleep(pause.uniform(0, 0.02))
                yield encoded

    write(path, encode=Slow())


def group_of_writers(path: Path, seed: int) -> None:
    """Two processes that write the same store, in a group of their own."""
    os.setsid()
    context = multiprocessing.get_context("fork")
    second = context.Process(target=slowly, args=(path, seed))
    second.start()
    slowly(path, seed + 1)
    second.join()


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_kill_9_of_all_processes_at_any_moment_changes_nothing(path: Path, uninterrupted: dict[str, bytes], seed: int):
    moment = random.Random(seed)
    context = multiprocessing.get_context("fork")
    for turn in range(8):
        process = context.Process(target=group_of_writers, args=(path, 100 * seed + turn))
        process.start()
        process.join(moment.uniform(0.01, 0.06))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    write(path)
    assert content(path) == uninterrupted


def test_two_processes_share_the_shards_of_a_store(path: Path, uninterrupted: dict[str, bytes]):
    """The second comes when the first is at its second batch, and ends when all is written."""
    context = multiprocessing.get_context("fork")
    others = context.Value("i", 0)

    def write_too() -> None:
        encode = Encoding()
        write(path, encode=encode)
        others.value = len(encode.done) if is_finished(path) else -1

    second = context.Process(target=write_too)
    own = []

    class Paused(Encoding):
        def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
            for number, encoded in enumerate(super().__call__(batches)):
                own.append(number)
                if len(own) == 2:
                    second.start()
                    while not (path / "00002.json").exists():
                        time.sleep(0.001)
                yield encoded

    write(path, encode=Paused())
    second.join()
    assert (len(own), others.value) == (5, 7)
    assert content(path) == uninterrupted


def test_shards_of_a_process_that_is_killed_are_taken_over(path: Path, uninterrupted: dict[str, bytes]):
    """The other process has the first shard, and is killed while this one waits for it."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=write, args=(path, plan_of(), forever))
    process.start()
    while not (path / "00000.part").exists():
        time.sleep(0.001)
    killer = context.Process(target=kill_when_there, args=(process.pid, path / "00002.json"))
    killer.start()
    done = continue_writing(path)
    for child in (killer, process):
        child.join()
    assert sorted(map(len, done)) == [2, 2, 8, *[32] * 9]
    assert content(path) == uninterrupted


def forever(batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
    """Encodes one batch, and never the next."""
    yield from Encoding()(islice(batches, 1))
    time.sleep(1000)


def kill_when_there(pid: int, file: Path) -> None:
    while not file.exists():
        time.sleep(0.001)
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)


def test_a_disk_without_room_is_reported_before_any_work(path: Path, monkeypatch: pytest.MonkeyPatch):
    encode, room = Encoding(LARGE), shutil.disk_usage(path.parents[1])._replace(free=2 * MEGABYTE)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: room)
    with pytest.raises(UserError, match=r"needs 8.0 MB, and the disk has less"):
        write(path, plan_of(NAMES[:8], LARGE), encode)
    assert encode.done == []


def test_a_disk_that_fills_up_is_reported_and_the_work_continues_later(path: Path):
    """There is room for one batch and a half."""
    plan = plan_of(NAMES[:64], LARGE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (48 * MEGABYTE, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written \(.*\); it needs 64.0 MB"):
            write(path, plan, Encoding(LARGE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    continue_writing(path, plan)
    grids = FeatureStore(path)[torch.tensor([0, 31, 32, 63])]
    assert torch.equal(grids, random_grids([NAMES[i] for i in (0, 31, 32, 63)], LARGE)[:, 0].half())


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e5), ("float16", torch.nan), ("int8", torch.inf)])
def test_values_that_do_not_fit_are_reported_and_do_not_become_infinite(path: Path, dtype: str, value: float):
    plan = plan_of(settings={**SETTINGS, "dtype": dtype})

    def encode(batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        for images in batches:
            grids = torch.ones(len(images), 2, 6, 5)
            grids[3, 1, 2, 1] = value
            yield EncodedBatch(images, grids, {})

    with pytest.raises(UserError, match=rf"the grids of photograph 0.jpg and others do not fit into {dtype}; choose"):
        write_store(path, plan, lambda: write_shards(path, plan, encode))
    assert count_written(path, plan) == 0
