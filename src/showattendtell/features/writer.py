"""Writes a store: any number of processes at once, each its own shards, and a killed one loses a batch at most.

A process that writes holds a shared lock on the store's folder, and the only lock on the shard that it writes. The
operating system gives both back, however the process ends.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from showattendtell.errors import UserError
from showattendtell.features.layout import (
    BATCH_SIZE,
    FORMAT,
    MANIFEST,
    PLAN,
    Manifest,
    Settings,
    ShardRecord,
    is_finished,
    journal_file,
    read_record,
    record_file,
    shard_bytes,
    shard_file,
    shard_header,
    write_whole,
)
from showattendtell.features.plan import Encode, Plan, telling_faults
from showattendtell.features.shard import Shard
from showattendtell.files import reserve


def write_store(path: Path, plan: Plan, work: Callable[[], None]) -> None:
    """Call `work`, which is to call `write_shards`, until the store is finished.

    Shards that other processes write are waited for, and taken over where those are killed. Raises `UserError` where
    they write something else, or the disk is full: space for all images is taken at the start.
    """
    with telling_faults(path, plan):
        path.mkdir(parents=True, exist_ok=True)
    with _opened(path) as folder:
        while _join(folder, path, plan):
            work()
            with telling_faults(path, plan):
                fcntl.flock(folder, fcntl.LOCK_EX)
                _finish(path, plan)


def write_shards(path: Path, plan: Plan, encode: Encode, tell: Callable[[int], None] = lambda number: None) -> None:
    """Write every shard that no other process has written or is writing; `tell` is given the images of each batch."""
    with _opened(path) as folder:
        fcntl.flock(folder, fcntl.LOCK_SH)
        for number, images in enumerate(plan.shards):
            with _claim(path, plan, number, images) as shard:
                if shard is None:
                    continue
                batches = shard.remaining()
                for batch, encoded in zip(batches, encode([shard.batch(batch) for batch in batches]), strict=True):
                    shard.write(batch, encoded)
                    tell(len(shard.batch(batch)))
                shard.finish()


def count_written(path: Path, plan: Plan) -> int:
    """The images that unfinished work has already."""
    written = 0
    for number, images in enumerate(plan.shards):
        if record_file(path, number).exists():
            written += len(images)
        elif journal_file(path, number).exists():
            written += min(journal_file(path, number).read_bytes().count(b"\n") * BATCH_SIZE, len(images))
    return written


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The folder, opened to be locked; at the end its lock is given back, whatever processes were forked meanwhile."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def _join(folder: int, path: Path, plan: Plan) -> bool:
    """Take the shared lock on a folder that is laid out for the plan; whether there is something to do."""
    with telling_faults(path, plan):
        with suppress(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_finished(path) and not _is_laid_out(path, plan):
                _lay_out(path, plan)
        fcntl.flock(folder, fcntl.LOCK_SH)
    if is_finished(path):
        return False
    if _read_plan(path) != plan.describe():
        raise UserError(f"{path} is being written by another process with other settings; wait until it is done")
    return True


def _read_plan(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads((path / PLAN).read_bytes())
    return None


def _is_laid_out(path: Path, plan: Plan) -> bool:
    sizes = {shard_file(path, number): shard_bytes(plan.settings, len(own)) for number, own in enumerate(plan.shards)}
    return _read_plan(path) == plan.describe() and all(
        file.is_file() and file.stat().st_size == size for file, size in sizes.items()
    )


def _lay_out(path: Path, plan: Plan) -> None:
    """Remove what other settings left, and take the space for all images."""
    for left in [path / PLAN, *_own_files(path)]:
        left.unlink(missing_ok=True)
    try:
        for number, images in enumerate(plan.shards):
            with shard_file(path, number).open("wb") as file:
                reserve(file.fileno(), shard_bytes(plan.settings, len(images)))
                file.write(shard_header(plan.settings, len(images)))
        write_whole(path / PLAN, plan.describe())
    except OSError:
        for left in _own_files(path):
            left.unlink()
        raise


def _own_files(path: Path) -> list[Path]:
    """Of shards, whole or not."""
    kinds = (".npy", ".json", ".progress", ".tmp")
    return [file for file in path.iterdir() if file.suffix in kinds and file.stem.isdigit()]


def _finish(path: Path, plan: Plan) -> None:
    """Say that the store is finished, if it is. Nobody else writes now."""
    numbers = range(len(plan.shards))
    if is_finished(path) or not all(record_file(path, number).exists() for number in numbers):
        return
    seal(path, plan.dataset, plan.settings, [read_record(path, number) for number in numbers])
    for left in [path / PLAN, *path.glob("*.progress"), *path.glob("*.tmp")]:
        left.unlink(missing_ok=True)


def seal(path: Path, dataset: str, settings: Settings, records: Sequence[ShardRecord]) -> None:
    """Write the manifest of shards that are all there."""
    lost, whole = (sum(getattr(record, name) for record in records) for name in ("lost", "whole"))
    error = (lost / whole) ** 0.5 if whole else 0.0
    manifest = Manifest(
        format=FORMAT, dataset=dataset, settings=dict(settings), shards=len(records), relative_error=error
    )
    write_whole(path / MANIFEST, manifest)


@contextmanager
def _claim(path: Path, plan: Plan, number: int, images: Sequence[str]) -> Iterator[Shard | None]:
    """The shard, for this process alone; None where another one has it or it is finished."""
    with shard_file(path, number).open("r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        try:
            if record_file(path, number).exists():
                yield None
            else:
                with closing(Shard(path, plan, number, images, file.fileno())) as shard:
                    yield shard
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
