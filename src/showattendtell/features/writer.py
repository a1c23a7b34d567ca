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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

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


class ShardWriter:
    """Writes a shard batch by batch, and its record at the end.

    Args:
        lock: the open file whose lock reserves the shard; closed with the writer.

    Attributes:
        batches: the images of each batch.
    """

    def __init__(self, path: Path, plan: StorePlan, number: int, lock: Any):
        self._path, self._plan, self._number, self._lock = path, plan, number, lock
        images = plan.shards[number]
        self.batches = [images[start : start + BATCH_SIZE] for start in range(0, len(images), BATCH_SIZE)]
        self._left = deque(self.batches)
        self._partial = shard_file(path, number, ".part")
        self._record = ShardRecord(images=list(images), skipped={}, checksum=0, stamps={})
        self._file = self._partial.open("wb")
        self._append(shard_header(plan.settings, len(images)))

    @classmethod
    def claim(cls, path: Path, plan: StorePlan, number: int) -> "ShardWriter | None":
        """Lock a shard; return None if it is complete or another process writes it."""
        with report_write_errors(path, plan):
            lock = shard_file(path, number, ".lock").open("a")
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not is_finished(path) and not shard_file(path, number, ".json").exists():
                    return cls(path, plan, number, lock)
            lock.close()
        return None

    def write(self, encoded: EncodedBatch) -> None:
        """Write the next batch; after the last one, complete the shard.

        Raises:
            UserError: values are too large for the data type, or the disk is full.
        """
        images, record = self._left.popleft(), self._record
        stored = np.zeros((len(images), self._plan.settings["views"]), grid_type(self._plan.settings))
        if encoded.images:
            try:
                packed = pack(encoded.grids.flatten(0, 1), self._plan.settings["dtype"]).reshape(-1, *stored.shape[1:])
            except OverflowError:
                raise UserError(
                    f"the grids of {encoded.images[0]} and others do not fit into {self._plan.settings['dtype']}; "
                    "choose another encoder.stride"
                ) from None
            if encoded.skipped:
                stored[[images.index(image) for image in encoded.images]] = packed
            else:
                stored = packed
        record.skipped |= encoded.skipped
        record.stamps |= encoded.stamps
        with report_write_errors(self._path, self._plan):
            self._append(stored)
            if not self._left:
                self._file.close()
                self._partial.rename(shard_file(self._path, self._number))
                write_json(record.model_dump(), shard_file(self._path, self._number, ".json"))
                self.close()

    def _append(self, content: Any) -> None:
        """Write bytes or an array."""
        self._file.write(content)
        self._record.checksum = zlib.crc32(content, self._record.checksum)

    def close(self) -> None:
        """Release the shard, complete or not."""
        self._file.close()
        self._lock.close()


def write_shards(path: Path, plan: StorePlan, encode: Encode, numbers: Iterable[int] | None = None) -> None:
    """Write all shards, or those with these numbers, that no other process writes or has written.

    A batch is written while the next one is encoded.
    """
    writers = deque[ShardWriter]()  # of the batches that were requested and not yet encoded
    with ExitStack() as opened, ThreadPoolExecutor(1) as thread:

        def batches() -> Iterator[Sequence[str]]:
            for number in range(len(plan.shards)) if numbers is None else numbers:
                if writer := ShardWriter.claim(path, plan, number):
                    opened.callback(writer.close)
                    for images in writer.batches:
                        writers.append(writer)
                        yield images

        written: Future[Any] = thread.submit(bool)  # of the last batch; at first there is none
        for encoded in encode(batches()):
            written.result()
            written = thread.submit(writers.popleft().write, encoded)
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
