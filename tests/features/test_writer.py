import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from disks import limited_files, small_disk
from grid_stores import NAMES, SETTINGS, Encoding, EndedError, content, plan_of, random_grids, write
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.features.store import EncodedBatch, FeatureStore, FileStamp, StorePlan, is_finished

LARGE = {**SETTINGS, "grid": [100, 100], "dim": 5, "views": 1}
"""A grid of 100 kB."""
SIZE = 100_000


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
    with suppress(EndedError):
        write(path, plan, encode)
    return encode.done


def continue_writing(path: Path, plan: StorePlan | None = None) -> list[list[str]]:
    """Write what is left; which batches that were."""
    encode = Encoding(dict(plan.settings) if plan else SETTINGS)
    write(path, plan, encode)
    return encode.done


@pytest.mark.parametrize("batches", [0, 1, 4, 5, 7, 11])
def test_work_continues_after_the_last_complete_shard(path: Path, uninterrupted: dict[str, bytes], batches: int):
    """A shard has five batches."""
    done = write_some(path, batches)
    assert not is_finished(path)
    complete = batches // 5 * 5
    assert len(list(path.glob("0*.json"))) == batches // 5
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
    for turn in range(4):
        process = context.Process(target=group_of_writers, args=(path, 100 * seed + turn))
        process.start()
        process.join(moment.uniform(0.01, 0.06))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    write(path)
    assert content(path) == uninterrupted


def test_of_two_commands_the_second_waits_and_writes_nothing(path: Path, uninterrupted: dict[str, bytes]):
    """The second comes when the first is at its second batch."""
    context = multiprocessing.get_context("fork")
    others = context.Value("i", -1)

    def write_too() -> None:
        encode = Encoding()
        write(path, encode=encode)
        others.value = len(encode.done) if is_finished(path) else -1

    second = context.Process(target=write_too)

    class Paused(Encoding):
        def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
            for number, encoded in enumerate(super().__call__(batches)):
                if number == 1:
                    second.start()
                    time.sleep(0.1)
                yield encoded

    write(path, encode=Paused())
    second.join()
    assert others.value == 0
    assert content(path) == uninterrupted


def write_as_rank(rank: int, folder: Path, path: Path, encode: Encoding) -> None:
    """Write a store as one of two processes; the batches of each are in `RANK.json`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    write(path, encode=encode)
    (folder / f"{rank}.json").write_text(json.dumps(encode.done))


def start_ranks(folder: Path, path: Path, *encodings: Encoding) -> list[ForkProcess]:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=write_as_rank, args=(i, folder, path, own)) for i, own in enumerate(encodings)]
    for process in ranks:
        process.start()
    return ranks


class After(Encoding):
    """Makes a file when its shards are locked, and encodes when another one is there."""

    def __init__(self, made: Path, awaited: Path):
        super().__init__()
        self.made, self.awaited = made, awaited

    def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        self.made.touch()
        while not self.awaited.exists():
            time.sleep(0.001)
        return super().__call__(batches)


def test_process_r_of_w_writes_every_wth_shard(path: Path, tmp_path: Path, uninterrupted: dict[str, bytes]):
    begun = [tmp_path / "first", tmp_path / "second"]
    for process in start_ranks(tmp_path, path, After(begun[0], path / "00001.json"), After(begun[1], begun[0])):
        process.join()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert [image for batch in first for image in batch] == NAMES[:130] + NAMES[260:]
    assert [image for batch in second for image in batch] == NAMES[130:260]
    assert content(path) == uninterrupted


class Forever(Encoding):
    """Encodes one batch, and never the next."""

    def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        yield from Encoding()(islice(batches, 1))
        time.sleep(1000)


def test_shards_of_a_process_that_is_killed_are_taken_over(path: Path, tmp_path: Path, uninterrupted: dict[str, bytes]):
    ranks = start_ranks(tmp_path, path, Encoding(), Forever())
    while not (list(path.glob("00001.npy")) and (path / "00002.json").exists()):
        time.sleep(0.001)
    ranks[1].kill()
    for process in ranks:
        process.join()
    assert len(json.loads((tmp_path / "0.json").read_text())) == 12
    assert content(path) == uninterrupted


@pytest.mark.parametrize("name", [".lock", "plan.json"])
def test_a_pipe_in_a_folder_that_is_written_to_is_reported(path: Path, name: str):
    path.mkdir(parents=True)
    os.mkfifo(path / name)
    with pytest.raises(UserError, match=rf"grids/{name} cannot be written \(it is a pipe or device\); set cache to"):
        write(path)


def test_a_folder_that_is_read_only_is_reported(tmp_path: Path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(UserError, match=r"cannot be written \(Read-only file system\); set cache to a folder"):
            write(disk / "features/grids")


def test_a_disk_without_room_is_reported_before_any_work(path: Path, monkeypatch: pytest.MonkeyPatch):
    encode, room = Encoding(LARGE), shutil.disk_usage(path.parents[1])._replace(free=2 * SIZE)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: room)
    with pytest.raises(UserError, match=r"needs 800.1 kB, and the disk has less"):
        write(path, plan_of(NAMES[:8], LARGE), encode)
    assert encode.done == []


def test_a_disk_that_fills_up_is_reported_and_the_work_continues_later(path: Path):
    """There is room for one batch and a half."""
    plan = plan_of(NAMES[:64], LARGE)
    unwritable = r"cannot be written \(.*\); set cache to a folder on another disk"
    with pytest.raises(UserError, match=unwritable), limited_files(48 * SIZE):
        write(path, plan, Encoding(LARGE))
    continue_writing(path, plan)
    grids = FeatureStore(path)[torch.tensor([0, 31, 32, 63])]
    assert torch.equal(grids, random_grids([NAMES[i] for i in (0, 31, 32, 63)], LARGE)[:, 0].half())


def test_an_error_of_the_encoder_is_not_one_of_the_disk(path: Path):
    def encode(batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        yield from Encoding()(islice(batches, 1))
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        write(path, encode=encode)


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e5), ("float16", torch.nan), ("int8", torch.inf)])
def test_values_that_do_not_fit_are_reported_and_do_not_become_infinite(path: Path, dtype: str, value: float):
    plan = plan_of(settings={**SETTINGS, "dtype": dtype})

    def encode(batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        for images in batches:
            grids = torch.ones(len(images), 2, 6, 5)
            grids[3, 1, 2, 1] = value
            yield EncodedBatch(dict.fromkeys(images, FileStamp(1, 1)), grids, {})

    with pytest.raises(UserError, match=rf"the grids of photograph 0.jpg and others do not fit into {dtype}; choose"):
        write(path, plan, encode)
    assert not list(path.glob("0*.json"))
