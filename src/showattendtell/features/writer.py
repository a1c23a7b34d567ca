"""Write feature stores, in one process or in several, and complete interrupted ones.

Process r of w writes every w-th shard from r on, then what others have left. The grids of a shard are written before
its record, so that a shard with a record is complete; one that a killed process had begun is written again.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.filesize import decimal
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.features.store import (
    FORMAT,
    MANIFEST,
    PLAN,
    FileStamp,
    Settings,
    ShardRecord,
    grid_type,
    is_finished,
    pack,
    shard_file,
    shard_header,
)
from showattendtell.runtime.distributed import shard_indices
from showattendtell.runtime.files import LOCK, atomic_write, open_regular, read_regular, write_errors

BATCH_SIZE = 32
"""Images per batch, the unit of encoding."""

MAX_SHARD_SIZE = 1024
MIN_SHARDS = 64
"""The shards of a store with images for as many batches, so that so many processes can write it."""


def shard_size(images: int) -> int:
    """Return the images per shard of a store: whole batches, and the same for any number of processes."""
    return min(BATCH_SIZE * math.ceil(images / (MIN_SHARDS * BATCH_SIZE)), MAX_SHARD_SIZE)


class StorePlan(NamedTuple):
    """Planned content of a store: the grids of `images` in this order."""

    dataset: str
    settings: Settings
    images: Sequence[str]
    shard_size: int = MAX_SHARD_SIZE

    @property
    def shards(self) -> list[Sequence[str]]:
        """The images of each shard."""
        starts = range(0, len(self.images), self.shard_size)
        return [self.images[start : start + self.shard_size] for start in starts]

    def batches(self, shard: int) -> list[Sequence[str]]:
        """Return the images of each batch of a shard."""
        images = self.shards[shard]
        return [images[start : start + BATCH_SIZE] for start in range(0, len(images), BATCH_SIZE)]

    @property
    def num_bytes(self) -> int:
        """Size of all shards in bytes."""
        headers = len(self.shards) * len(shard_header(self.settings, 1))
        return headers + len(self.images) * self.settings["views"] * grid_type(self.settings).itemsize

    def describe(self) -> bytes:
        """Return the manifest. An unfinished store is completed if its own, in `plan.json`, is equal."""
        names = hashlib.sha256("\n".join(self.images).encode()).hexdigest()
        sizes = {"shards": len(self.shards), "shard_size": self.shard_size, "images_sha256": names}
        content = {"format": FORMAT, "dataset": self.dataset, "settings": self.settings, **sizes}
        return f"{json.dumps(content, indent=1)}\n".encode()


class EncodedBatch(NamedTuple):
    """An encoded batch.

    stamps   of the files of the readable images, by name
    grids    (N, views, L, D) their grids, in float32; on a GPU they are packed there
    skipped  errors of the unreadable images, by name
    """

    stamps: Mapping[str, FileStamp]
    grids: Tensor
    skipped: Mapping[str, str]


Encode = Callable[[Iterable[Sequence[str]]], Iterator[EncodedBatch]]
"""Encodes batches of images, which are given by their names and may be requested ahead."""

DISK = "set cache to a folder on another disk"
"""Advice about a cache that cannot be written."""


def write_shards(path: Path, plan: StorePlan, encode: Encode, numbers: Sequence[int]) -> Iterator[int]:
    """Write the shards with these numbers; yield the number of each.

    Raises:
        UserError: as `encode`; values are too large for the data type; the disk is full.
    """
    encoded = encode(images for number in numbers for images in plan.batches(number))
    for number in numbers:
        _write_shard(path, plan, number, encoded)
        yield number


def _write_shard(path: Path, plan: StorePlan, number: int, encoded: Iterator[EncodedBatch]) -> None:
    """Write a shard and its record from the next encoded batches. A batch is written while the next one is encoded."""
    file, record = shard_file(path, number), ShardRecord(images=list(plan.shards[number]), skipped={}, stamps={})
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(_write_at, file, 0, shard_header(plan.settings, len(record.images)))
        for images in plan.batches(number):
            batch = next(encoded)
            written = thread.submit(_write_batch, file, written.result(), images, batch, plan.settings)
            record.skipped |= batch.skipped
            record.stamps |= batch.stamps
        written.result()
    with write_errors(file, DISK):
        with open_regular(file) as stream:
            os.fsync(stream.fileno())
        with atomic_write(shard_file(path, number, ".json")) as stream:
            stream.write(record.model_dump_json(indent=1).encode())


def _write_batch(file: Path, start: int, images: Sequence[str], batch: EncodedBatch, settings: Settings) -> int:
    """Write the grids of a batch at a position in a file, 0 for unreadable images; return the position after them."""
    stored = np.zeros((len(images), settings["views"]), grid_type(settings))
    if batch.stamps:
        try:
            packed = pack(batch.grids.flatten(0, 1), settings["dtype"])
        except OverflowError:
            raise UserError(
                f"the grids of {images[0]} and others do not fit into {settings['dtype']}; choose another "
                "encoder.stride"
            ) from None
        stored[[images.index(image) for image in batch.stamps]] = packed.reshape(-1, *stored.shape[1:])
    return _write_at(file, start, stored.data)


def _write_at(file: Path, start: int, content: bytes | memoryview) -> int:
    """Write at a position in a file, which is made new for position 0; return the position after the content."""
    with write_errors(file, DISK), open_regular(file, "r+b" if start else "wb") as stream:
        stream.seek(start)
        return start + stream.write(content)


def write_store(path: Path, plan: StorePlan, write: Callable[[Sequence[int]], Iterable[int]]) -> None:
    """Complete a store. `write` writes shards by their numbers, and yields the number of each.

    Raises:
        UserError: the folder has an unfinished store with other settings, or the disk has too little space.
    """
    file, described, total = path / PLAN, plan.describe(), range(len(plan.shards))
    with write_errors(file, DISK):
        if not is_finished(path) and not file.exists():
            with atomic_write(file) as stream:
                stream.write(described)
        with suppress(FileNotFoundError):  # another process has finished the store
            if read_regular(file) != described:
                raise UserError(f"{path} has an unfinished store with other images or settings; delete the folder")
    for numbers in (shard_indices(len(total)), total):
        with locked(path, numbers):
            missing = [number for number in numbers if not shard_file(path, number, ".json").exists()]
            needed = plan.num_bytes * len(missing) // len(total)
            if shutil.disk_usage(path).free < needed:
                raise UserError(f"{path} needs {decimal(needed)}, and the disk has less; {DISK}")
            for _ in write(missing) if missing else ():
                pass
    with write_errors(path, DISK):
        with suppress(FileNotFoundError):  # another process has done so
            file.rename(path / MANIFEST)
        (path / LOCK).unlink(missing_ok=True)


@contextmanager
def locked(path: Path, numbers: range) -> Iterator[None]:
    """Wait until no other process writes these shards, and keep them for this one in a `with` block.

    Each shard is a byte of the lock file. The locks end with their process.
    """
    with write_errors(path / LOCK, DISK):
        file = open_regular(path / LOCK, "ab")
    with file:
        for number in numbers:  # in ascending order, so that no two processes wait for each other
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except BlockingIOError:
                if number == numbers[0]:
                    print(f"note: waiting for another process that writes {path}")
                fcntl.lockf(file, fcntl.LOCK_EX, 1, number)
        yield
