"""Write feature stores, in one process or in several at once, and complete interrupted ones.

A process locks a shard, writes it and then its record, so that a shard with a record is complete. The
locks are those of `flock`, which end with their process: the shard of a killed process is written again.
"""

import fcntl
import hashlib
import json
import math
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray
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
from showattendtell.runtime.files import atomic_write, write_errors, write_json

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

    images   names of the readable images
    grids    (N, views, L, D) their grids, in float32; on a GPU they are packed there
    skipped  errors of the unreadable images, by name
    stamps   of the files of the readable images
    """

    images: Sequence[str]
    grids: Tensor
    skipped: Mapping[str, str]
    stamps: Mapping[str, FileStamp] = MappingProxyType({})


Encode = Callable[[Iterable[Sequence[str]]], Iterator[EncodedBatch]]
"""Encodes batches of images, which are given by their names and may be requested ahead."""


def report_write_errors(path: Path, plan: StorePlan) -> AbstractContextManager[None]:
    """Convert an error of writing, such as a full disk, to `UserError`."""
    return write_errors(path, f"it needs {decimal(plan.num_bytes)}; set cache to a folder on another disk")


def pack_batch(images: Sequence[str], encoded: EncodedBatch, settings: Settings) -> NDArray:
    """Return the stored grids (I, views) of a batch; those of unreadable images are 0.

    Raises:
        UserError: values are too large for the data type.
    """
    stored = np.zeros((len(images), settings["views"]), grid_type(settings))
    if encoded.images:
        try:
            packed = pack(encoded.grids.flatten(0, 1), settings["dtype"])
        except OverflowError:
            raise UserError(
                f"the grids of {encoded.images[0]} and others do not fit into {settings['dtype']}; "
                "choose another encoder.stride"
            ) from None
        stored[[images.index(image) for image in encoded.images]] = packed.reshape(-1, *stored.shape[1:])
    return stored


def claim_shard(path: Path, plan: StorePlan, number: int) -> TextIO | None:
    """Return a file whose lock reserves a shard until it is closed; None if the shard is complete, or another process
    writes it."""
    with report_write_errors(path, plan):
        lock = shard_file(path, number, ".lock").open("a")
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_finished(path) and not shard_file(path, number, ".json").exists():
                return lock
        lock.close()
    return None


def write_shard(path: Path, plan: StorePlan, number: int, lock: TextIO) -> Generator[None, EncodedBatch, None]:
    """Coroutine that is sent the encoded batches of a shard, and writes each. After the last one it writes the record
    and releases the shard."""
    record = ShardRecord(images=list(plan.shards[number]), skipped={}, checksum=0, stamps={})
    partial = shard_file(path, number, ".part")
    with lock, report_write_errors(path, plan):
        with partial.open("wb") as file:
            header = shard_header(plan.settings, len(record.images))
            file.write(header)
            record.checksum = zlib.crc32(header)
            for images in plan.batches(number):
                encoded = yield
                stored: Any = pack_batch(images, encoded, plan.settings)
                file.write(stored)
                record.checksum = zlib.crc32(stored, record.checksum)
                record.skipped |= encoded.skipped
                record.stamps |= encoded.stamps
        partial.rename(shard_file(path, number))
        write_json(record.model_dump(), shard_file(path, number, ".json"))
    yield


def write_shards(path: Path, plan: StorePlan, encode: Encode, numbers: Iterable[int] | None = None) -> None:
    """Write all shards, or those with these numbers, that no other process writes or has written.

    A batch is written while the next one is encoded.
    """
    writers = deque[Generator[None, EncodedBatch, None]]()  # of the batches that were requested and not yet encoded
    with ExitStack() as opened, ThreadPoolExecutor(1) as thread:

        def batches() -> Iterator[Sequence[str]]:
            for number in range(len(plan.shards)) if numbers is None else numbers:
                if lock := claim_shard(path, plan, number):
                    writer = write_shard(path, plan, number, lock)
                    opened.callback(writer.close)
                    next(writer)
                    for images in plan.batches(number):
                        writers.append(writer)
                        yield images

        written: Future[Any] = thread.submit(bool)  # of the last batch; at first there is none
        for encoded in encode(batches()):
            written.result()
            written = thread.submit(writers.popleft().send, encoded)
        written.result()


def write_store(path: Path, plan: StorePlan, work: Callable[[], None]) -> None:
    """Call `work`, which calls `write_shards`, until the store is complete.

    Shards of other processes are waited for, and written here if those processes are killed.

    Raises:
        UserError: the folder has an unfinished store with other settings, or the disk has too little space.
    """
    file, described = path / PLAN, plan.describe()
    with report_write_errors(path, plan):
        path.mkdir(exist_ok=True)
        if not is_finished(path) and not file.exists():
            with atomic_write(file) as stream:
                stream.write(described)
    with suppress(FileNotFoundError):  # another process has finished the store
        if file.read_bytes() != described:
            raise UserError(f"{path} has an unfinished store with other images or settings; delete the folder")
    if count_written(path, plan) == 0 and shutil.disk_usage(path).free < plan.num_bytes:
        raise UserError(
            f"{path} needs {decimal(plan.num_bytes)}, and the disk has less; set cache to a folder on another disk"
        )
    while not is_finished(path):
        work()
        if count_written(path, plan) < len(plan.images):
            time.sleep(0.2)  # other processes write the remaining shards
            continue
        with report_write_errors(path, plan):
            with suppress(FileNotFoundError):  # another process has done so
                file.rename(path / MANIFEST)
            for pattern in ("*.lock", "*.part", "*.tmp"):
                for left in path.glob(pattern):
                    left.unlink(missing_ok=True)


def count_written(path: Path, plan: StorePlan) -> int:
    """Return the number of images in the complete shards of a store."""
    return sum(len(images) for number, images in enumerate(plan.shards) if shard_file(path, number, ".json").exists())
