"""The feature cache: grids of a frozen encoder on disk.

A store is a folder. Its shards are numpy arrays, each with a record of its own, so that several
processes and machines can write one store and an interrupted one loses one shard at most. Process r of w writes every
w-th shard from r on, then what others have left.

    store.json      `Manifest`: settings and number of shards, written last
    00000.npy ...   shards (images, views, L, D) of float16, or of int8 with a step per region
    00000.json      `ShardRecord`: image names, unreadable images; written after the shard, which it completes
    plan.json       the manifest of an unfinished store, see `StorePlan`
"""

import errno
import fcntl
import hashlib
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from rich.filesize import decimal
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.distributed import shard_indices
from showattendtell.runtime.files import LOCK, atomic_write, fadvise, open_regular, read_regular, write_errors
from showattendtell.settings import PositiveInt, leaves

FORMAT = 4
MANIFEST, PLAN = "store.json", "plan.json"

LARGEST = 2**28
"""The largest number of values in the grids of an image, of all views."""

REFUSED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE)
"""Errors of opening a file that do not mean that it is damaged: no permission, or too many open files."""

StoredDtype = Literal["float16", "int8"]
Content = TypeVar("Content", bound=BaseModel)

Settings = Mapping[str, Any]
"""All that determines the grids: the content of `Encoder.describe`, `dtype`, `views`, `precision`."""


def grid_type(settings: Settings) -> np.dtype:
    """Return the data type of one grid: (L, D) in float16, or in int8 with a step (L,).

    An int8 value q from -127 to 127 stands for q * step, with step = max |value| / 127 per region.
    """
    regions, dim = math.prod(settings["grid"]), settings["dim"]
    if settings["dtype"] == "float16":
        return np.dtype((np.float16, (regions, dim)))
    return np.dtype([("step", np.float32, (regions,)), ("q", np.int8, (regions, dim))])


def pack(grids: Tensor, dtype: StoredDtype) -> NDArray:
    """Convert grids (N, L, D) in float32 to N stored ones.

    Raises:
        OverflowError: a value is not finite, or too large for the data type.
    """
    if dtype == "float16":
        stored = grids.to(torch.float16)
        if not stored.isfinite().all():
            raise OverflowError
        return stored.contiguous().cpu().numpy()
    values = grids.float().cpu().numpy()
    settings = {"grid": values.shape[1:2], "dim": values.shape[2], "dtype": dtype}
    packed = np.empty(len(values), grid_type(settings))
    packed["step"] = np.abs(values).max(axis=2) / 127
    step = packed["step"][..., np.newaxis]
    if not np.isfinite(step).all():
        raise OverflowError
    packed["q"] = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0))
    return packed


def unpack(stored: NDArray) -> Tensor:
    """Convert N stored grids to (N, L, D): float16 as it is, int8 to float32."""
    if stored.dtype == np.float16:
        return torch.from_numpy(stored)
    values = stored["q"].astype(np.float32)
    values *= stored["step"][..., np.newaxis]
    return torch.from_numpy(values)


class FileStamp(NamedTuple):
    """Size of a photograph in bytes, and time of its last change in ns: with equal ones it counts as unchanged."""

    size: int
    changed: int

    @classmethod
    def of(cls, path: str) -> "FileStamp":
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns)


class StoreSettings(BaseModel, strict=True, extra="allow"):
    """The settings that the size of a grid follows from, and others."""

    grid: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]
    dim: PositiveInt
    views: PositiveInt
    dtype: StoredDtype


class Manifest(BaseModel):
    """Content of `store.json`."""

    format: int
    settings: StoreSettings
    shards: int


class ShardRecord(BaseModel):
    """Record of a shard.

    images: names by position, unreadable images included.
    skipped: unreadable images with the reason; their grids are 0.
    stamps: of the photographs when they were encoded.
    """

    images: list[str]
    skipped: dict[str, str]
    stamps: dict[str, FileStamp]


def shard_file(path: Path, number: int, suffix: str = ".npy") -> Path:
    """Return the file with the grids of a shard, or with `.json` that with its record, which completes it."""
    return path / f"{number:05}{suffix}"


def is_finished(path: Path) -> bool:
    """Return whether a folder has a complete store."""
    return (path / MANIFEST).is_file()


def shard_header(settings: Settings, images: int) -> bytes:
    """Return the header of the `.npy` file of a shard with that many images."""
    grid, header = grid_type(settings), io.BytesIO()
    shape = (images, settings["views"], *grid.shape)
    content = {"descr": np.lib.format.dtype_to_descr(grid.base), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, content)
    return header.getvalue()


def _read(file: Path, model: type[Content]) -> Content:
    try:
        return model.model_validate_json(read_regular(file))
    except OSError as error:
        if error.errno in REFUSED:
            raise
        raise damaged(file.parent, f"{file.name}: {error.strerror}") from None
    except ValidationError:
        raise damaged(file.parent, f"{file.name} is not what was written") from None


def damaged(path: Path, reason: str) -> UserError:
    """Return the error for a damaged store."""
    return UserError(f"{path} is damaged ({reason}); delete the folder; prepare and train recreate it")


def check_same_settings(path: Path, stored: Settings, expected: Settings) -> None:
    """Raise `UserError` if settings differ; the message names the first difference."""
    old, new = (dict(leaves("", settings)) for settings in (stored, expected))
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            raise UserError(
                f"{path} was made with {name}={old.get(name)}, this run has {name}={new.get(name)}; set cache to "
                "another folder, or delete this one; the next run recreates it"
            )


class FeatureStore:
    """Grids by row, read from disk on request.

    Shards are opened at their first use and read with `preadv`, which has no file position. A store
    therefore works in other processes, and its data are in the page cache instead of their memory.

    Attributes:
        settings: with which the grids were computed.
        views: grids per image.
        skipped: unreadable images, with the reason.
        stamps: of the photographs when they were encoded.

    Raises:
        UserError: the store is incomplete or damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        manifest = _read(path / MANIFEST, Manifest)
        if manifest.format != FORMAT:
            raise UserError(f"{path} has format {manifest.format}, and this version reads {FORMAT}; delete the folder")
        self.settings: Settings = manifest.settings.model_dump()
        self.views = manifest.settings.views
        if math.prod([*self.settings["grid"], self.settings["dim"], self.views]) > LARGEST:
            raise damaged(path, "the grids of an image are too large")  # before memory is allocated for them
        self.skipped: dict[str, str] = {}
        self.stamps: dict[str, FileStamp] = {}
        self._grid = grid_type(self.settings)
        self._files: dict[int, Any] = {}
        self._header = len(shard_header(self.settings, 1))  # of all shards: numpy leaves room for the number of images
        # Rows are numbered through all shards; shard k has the rows from _firsts[k] on. In its file, after the header,
        # the views of an image follow each other.
        names, firsts = list[str](), []
        for number in range(manifest.shards):
            record = _read(shard_file(path, number, ".json"), ShardRecord)
            file = shard_file(path, number)
            size = file.stat().st_size if file.is_file() else 0
            expected_size = self._header + len(record.images) * self.views * self._grid.itemsize
            if size != expected_size:
                raise damaged(path, f"{file.name} has {size} bytes, {expected_size} were written")
            firsts.append(len(names))
            names += record.images
            self.skipped |= record.skipped
            self.stamps |= record.stamps
        self._firsts = np.array(firsts, int)
        self._rows = {image: row for row, image in enumerate(names) if image not in self.skipped}

    def rows(self, images: Sequence[str]) -> Tensor:
        """Return the rows (I,) of the named images."""
        return torch.tensor([self._rows[image] for image in images], dtype=torch.long)

    def covers(self, images: Iterable[str]) -> bool:
        """Return whether all images are stored, or were skipped as unreadable."""
        return self._rows.keys() | self.skipped.keys() >= set(images)

    def __len__(self) -> int:
        """Number of images with a grid."""
        return len(self._rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the grids (I, L, D) of view 0 at rows (I,), in float16, or in float32 if the store has int8."""
        return self.read(rows, torch.zeros_like(rows))

    def read(self, rows: Tensor, views: Tensor) -> Tensor:
        """Return the grids (I, L, D) at rows (I,), of the views (I,), in float16, or in float32 if the store has int8.

        Raises:
            IndexError: the store does not have a view.
            UserError: a shard is missing or too short.
        """
        if (views >= self.views).any():
            raise IndexError(f"{self.path} has {self.views} views of each image, and no view {int(views.max())}")
        size = self._grid.itemsize
        shards = np.searchsorted(self._firsts, rows.numpy(), side="right") - 1
        grids = (rows.numpy() - self._firsts[shards]) * self.views + views.numpy()
        places = list(zip(shards.tolist(), (self._header + grids * size).tolist(), strict=True))
        content = np.empty((len(rows), size), np.uint8)
        try:
            for shard, offset in places:  # the disk can then read all grids at once
                fadvise(self._open(shard), "WILLNEED", offset, size)
            for (shard, offset), buffer in zip(places, content, strict=True):
                if os.preadv(self._open(shard), [buffer.data], offset) != size:
                    raise damaged(self.path, f"{shard_file(self.path, shard).name} ends too early")
        except OSError as error:
            if error.errno in REFUSED:
                raise
            raise damaged(self.path, f"{Path(error.filename or '').name}: {error.strerror}") from None
        return unpack(np.ndarray((len(rows),), self._grid, content))

    def _open(self, number: int) -> int:
        if number not in self._files:
            self._files[number] = open_regular(shard_file(self.path, number))
            fadvise(self._files[number].fileno(), "RANDOM")
        descriptor: int = self._files[number].fileno()
        return descriptor

    def __getstate__(self) -> dict[str, Any]:
        """Omit open files: another process opens its own."""
        return {**self.__dict__, "_files": {}}


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
        written = thread.submit(_write, file, shard_header(plan.settings, len(record.images)), "wb")
        for images in plan.batches(number):
            batch = next(encoded)
            written.result()
            written = thread.submit(_write_batch, file, images, batch, plan.settings)
            record.skipped |= batch.skipped
            record.stamps |= batch.stamps
        written.result()
    with write_errors(file, DISK):
        with open_regular(file) as stream:
            os.fsync(stream.fileno())
        with atomic_write(shard_file(path, number, ".json")) as stream:
            stream.write(record.model_dump_json(indent=1).encode())


def _write_batch(file: Path, images: Sequence[str], batch: EncodedBatch, settings: Settings) -> None:
    """Append the grids of a batch to a file, 0 for unreadable images."""
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
    _write(file, stored.data, "ab")


def _write(file: Path, content: bytes | memoryview, mode: str) -> None:
    with write_errors(file, DISK), open_regular(file, mode) as stream:
        stream.write(content)


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
