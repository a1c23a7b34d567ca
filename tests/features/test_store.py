import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from disks import limited_files, small_disk
from grid_stores import NAMES, SETTINGS, Encoding, EndedError, content, damage, plan_of, random_grids, write
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.features.store import (
    EncodedBatch,
    FeatureStore,
    FileStamp,
    StorePlan,
    check_same_settings,
    grid_type,
    is_finished,
    pack,
    unpack,
)

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


@pytest.fixture
def stored(path: Path) -> Path:
    write(path)
    return path


def test_what_is_written_is_read_back_to_the_precision_of_fp16(stored: Path):
    store = FeatureStore(stored)
    assert torch.equal(store[store.rows(NAMES)], random_grids(NAMES)[:, 0].half())
    chosen = [NAMES[i] for i in (207, 2, 129, 130, 207)]
    assert torch.equal(store[store.rows(chosen)], random_grids(chosen)[:, 0].half())
    assert (len(store), store.views, store.skipped) == (300, 2, {})
    views = torch.randint(2, (300,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(store.read(store.rows(NAMES), views), random_grids(NAMES)[torch.arange(300), views].half())
    assert store[torch.tensor([], dtype=torch.long)].shape == (0, 6, 5)


def test_skipped_images_have_no_row_and_their_reason(tmp_path: Path):
    broken = [NAMES[0], NAMES[31], NAMES[299], *NAMES[132:170]]
    write(tmp_path / "grids", encode=Encoding(broken=broken))
    store = FeatureStore(tmp_path / "grids")
    present = [image for image in NAMES if image not in broken]
    assert store.skipped == {image: f"{image} is broken" for image in sorted(broken, key=NAMES.index)}
    assert torch.equal(store[store.rows(present)], random_grids(present)[:, 0].half())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "vgg19"}, r"network=tiny, this run has network=vgg19"),
        (
            {"preprocessing": {"crop": 8, "mean": [0.5, 0.5, 0.5]}},
            r"preprocessing.crop=4, .* has preprocessing.crop=8",
        ),
        ({"later": 1}, r"later=None, this run has later=1"),
    ],
)
def test_a_store_made_with_other_settings_is_refused_by_naming_the_difference(stored: Path, change: dict, message: str):
    with pytest.raises(UserError, match=rf"grids was made with {message}; set cache to another folder"):
        check_same_settings(stored, FeatureStore(stored).settings, {**SETTINGS, **change})


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "manifest empty": ("store.json", lambda whole: b""),
    "manifest a list": ("store.json", lambda whole: b"[]"),
    "manifest not UTF-8": ("store.json", lambda whole: b"\xff\xfe"),
    "record cut": ("00001.json", lambda whole: whole[:-20]),
    "record without names": ("00001.json", lambda whole: b"{}"),
    "shard cut": ("00002.npy", lambda whole: whole[:-1]),
    "shard longer": ("00002.npy", lambda whole: whole + b"1"),
}


@pytest.mark.parametrize(("name", "change"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_is_reported(stored: Path, name: str, change: Callable[[bytes], bytes]):
    damage(stored / name, change)
    with pytest.raises(UserError, match=rf"grids is damaged \(.*{name}.+\); delete the folder; prepare and train"):
        FeatureStore(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "00002.npy: No such file or directory"),
        (lambda file: os.truncate(file, 1000), "00002.npy ends too early"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "00002.npy: it is a pipe or device"),
    ],
)
def test_grids_that_vanish_after_the_store_was_opened_are_reported(
    stored: Path, change: Callable[[Path], object], message: str
):
    store = FeatureStore(stored)
    assert store[store.rows(NAMES[:2])].shape == (2, 6, 5)
    change(stored / "00002.npy")
    with pytest.raises(
        UserError, match=rf"grids is damaged \({message}\); delete the folder; prepare and train recreate it"
    ):
        store[store.rows(NAMES[299:])]


def test_int8_by_hand():
    grid = torch.tensor([[[127.0, -127.0, 1.4, 0.6], [0.0, 2.54, -1.27, 0.011]]])
    packed = pack(grid, "int8")
    assert packed["q"].tolist() == [[[127, -127, 1, 1], [0, 127, -64, 1]]]
    assert packed["step"].tolist() == [[1.0, pytest.approx(0.02)]]
    expected = torch.tensor([[[127.0, -127.0, 1.0, 1.0], [0.0, 2.54, -1.28, 0.02]]])
    torch.testing.assert_close(unpack(packed), expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6])
def test_int8_is_off_by_half_a_step_of_the_region_at_most(scale: float):
    generator = torch.Generator().manual_seed(0)
    exact = scale * torch.randn(3, 4, 64, generator=generator) * torch.rand(3, 4, 1, generator=generator)
    packed = pack(exact, "int8")
    assert packed.nbytes == 3 * grid_type({"grid": [2, 2], "dim": 64, "dtype": "int8"}).itemsize
    steps = exact.abs().amax(dim=2, keepdim=True) / 127
    assert ((unpack(packed) - exact).abs() <= 0.5001 * steps).all()
