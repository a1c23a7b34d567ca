"""The feature cache: grids of a frozen encoder on disk.

A store is a folder. Its shards are numpy arrays, each with a record of its own, so that several
processes and machines can write one store and an interrupted one loses one shard at most.

    store.json      `Manifest`: settings and number of shards, written last
    00000.npy ...   shards (images, views, L, D) of float16, or of int8 with a step per region
    00000.json      `ShardRecord`: image names, checksum, unreadable images; written after the shard
    plan.json       the manifest of an unfinished store, see `StorePlan`
    verified.json   size and time of each shard when its checksum was last compared
"""

import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.files import fadvise, write_json
from showattendtell.settings import PositiveInt

FORMAT = 3
MANIFEST, PLAN, VERIFIED = "store.json", "plan.json", "verified.json"

LARGEST = 2**28
"""The largest number of values in the grids of an image, of all views."""

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
    """Identifies the content of a photograph: size in bytes, time of the last change in ns, CRC-32."""

    size: int
    changed: int
    checksum: int

    @classmethod
    def of(cls, path: str) -> "FileStamp":
        """Return the stamp of a file, which is read for it."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, zlib.crc32(Path(path).read_bytes()))

    def is_of(self, path: str) -> bool:
        """Return whether the file has this content. It is read only if its time differs, as after a copy."""
        status = os.stat(path)
        is_untouched = status.st_mtime_ns == self.changed
        return status.st_size == self.size and (is_untouched or zlib.crc32(Path(path).read_bytes()) == self.checksum)


class StoreSettings(BaseModel, strict=True, extra="allow"):
    """The settings that the size of a grid follows from, and others."""

    grid: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]
    dim: PositiveInt
    views: PositiveInt
    dtype: StoredDtype


class Manifest(BaseModel):
    """Content of `store.json`."""

    format: int
    dataset: str
    settings: StoreSettings
    shards: int


class ShardRecord(BaseModel):
    """Record of a shard.

    images: names by position, unreadable images included.
    skipped: unreadable images with the reason; their grids are 0.
    checksum: CRC-32 of the shard's file.
    stamps: of the photographs when they were encoded.
    """

    images: list[str]
    skipped: dict[str, str]
    checksum: int
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
        return model.model_validate_json(file.read_bytes())
    except OSError as error:
        raise damaged(file.parent, f"{file.name}: {error.strerror}") from None
    except ValidationError:
        raise damaged(file.parent, f"{file.name} is not what was written") from None


def damaged(path: Path, reason: str) -> UserError:
    """Return the error for a damaged store."""
    return UserError(f"{path} is damaged ({reason}); delete the folder; prepare and train recreate it")


def check_same_settings(path: Path, stored: Settings, expected: Settings) -> None:
    """Raise `UserError` if settings differ; the message names the first difference."""
    for key in {**stored, **expected}:
        old, new = stored.get(key), expected.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            check_same_settings(path, old, new)
        elif old != new:
            raise UserError(
                f"{path} was made with {key}={old}, this run has {key}={new}; set cache to another "
                "folder, or delete this one; the next run recreates it"
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
        if path.is_dir() and not is_finished(path):
            raise UserError(f"{path} is not a complete feature store; run prepare again, or delete the folder")
        manifest = _read(path / MANIFEST, Manifest)
        if manifest.format != FORMAT:
            raise UserError(f"{path} has format {manifest.format}, and this version reads {FORMAT}; delete the folder")
        self.settings: Settings = manifest.settings.model_dump()
        if math.prod([*self.settings["grid"], self.settings["dim"], self.settings["views"]]) > LARGEST:
            raise damaged(path, "the grids of an image are too large")  # before memory is allocated for them
        self.views = manifest.settings.views
        self.skipped: dict[str, str] = {}
        self.stamps: dict[str, FileStamp] = {}
        self._grid = grid_type(self.settings)
        self._files: dict[int, int] = {}
        self._header = len(shard_header(self.settings, 1))  # of all shards: numpy leaves room for the number of images
        # Rows are numbered through all shards; shard k has the rows from _firsts[k] on. In its file, after the header,
        # the views of an image follow each other.
        names, firsts, self._checksums = list[str](), list[int](), list[int]()
        for number in range(manifest.shards):
            record = _read(shard_file(path, number, ".json"), ShardRecord)
            file = shard_file(path, number)
            size = file.stat().st_size if file.is_file() else 0
            expected_size = self._header + len(record.images) * self.views * self._grid.itemsize
            if size != expected_size:
                raise damaged(path, f"{file.name} has {size} bytes, {expected_size} were written")
            firsts.append(len(names))
            self._checksums.append(record.checksum)
            names += record.images
            self.skipped |= record.skipped
            self.stamps |= record.stamps
        self._firsts = np.array(firsts, int)
        self._rows = {image: row for row, image in enumerate(names) if image not in self.skipped}

    def rows(self, images: Sequence[str]) -> Tensor:
        """Return the rows (I,) of the named images. Raise `UserError` if the store lacks one."""
        if unknown := [image for image in images if image not in self._rows]:
            raise UserError(f"{self.path} lacks {len(unknown)} of the data set's images, the first is {unknown[0]}")
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
        """Return the grids (I, L, D) at rows (I,), of the views (I,).

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
            raise damaged(self.path, f"{Path(error.filename or '').name}: {error.strerror}") from None
        return unpack(np.ndarray((len(rows),), self._grid, content))

    def verify(self) -> None:
        """Compare the checksums of all shards. Raise `UserError` for the first one that differs."""
        title = f"verifying {self.path.name}"
        for number, expected in enumerate(track(self._checksums, title, console=Console(stderr=True), transient=True)):
            checksum, file = 0, shard_file(self.path, number)
            with file.open("rb") as content:  # not mapped: a disk that cannot be read would kill the process
                while chunk := content.read(2**22):
                    checksum = zlib.crc32(chunk, checksum)
            if checksum != expected:
                raise damaged(self.path, f"{file.name} does not match its checksum")

    def verify_changed(self) -> None:
        """Verify a store at its first use, and again if size or time of a shard has changed since then.

        Raises:
            UserError: for the first shard that is damaged.
        """
        files = [shard_file(self.path, number) for number in range(len(self._checksums))]
        stamps = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
        mark = self.path / VERIFIED
        with suppress(OSError, ValueError, RecursionError):
            if json.loads(mark.read_bytes()) == stamps:
                return
        self.verify()
        with suppress(OSError):  # the cache may be read-only
            write_json(stamps, mark)

    def _open(self, number: int) -> int:
        if number not in self._files:
            self._files[number] = os.open(shard_file(self.path, number), os.O_RDONLY)
            fadvise(self._files[number], "RANDOM")
        return self._files[number]

    def __getstate__(self) -> dict[str, Any]:
        """Omit open files: another process opens its own."""
        return {**self.__dict__, "_files": {}}

    def __del__(self) -> None:
        for file in self.__dict__.get("_files", {}).values():
            os.close(file)


def find_stores(folder: Path) -> list[Path]:
    """Return the folders of the stores below a folder, complete or not."""
    return sorted({mark.parent for name in (MANIFEST, PLAN) for mark in folder.rglob(name)})


def print_stores(folder: Path, compare: bool) -> None:
    """Print what the stores below a folder contain.

    Args:
        compare: also verify all complete stores.

    Raises:
        UserError: shards are damaged; it lists the first one of each store.
    """
    stores = find_stores(folder)
    print(f"in {folder}" if stores else f"there are no stores of grids in {folder}")
    for path in stores:
        print(f"{path.relative_to(folder)}: {_describe(path)}")
    errors = list[str]()
    for path in filter(is_finished, stores) if compare else []:
        try:
            FeatureStore(path).verify()
            print(f"{path}: checksums match")
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; ".join(errors))


def _describe(path: Path) -> str:
    """Return number of images, grid and size of a store, or what is wrong with it."""
    size = decimal(sum(file.stat().st_size for file in path.iterdir()))
    if not is_finished(path):
        return f"unfinished, {len(list(path.glob('*.npy')))} shards, {size}"
    try:
        store = FeatureStore(path)
    except UserError as error:
        return str(error)
    rows, columns = store.settings["grid"]
    grid = f"{rows} x {columns} x {store.settings['dim']} {store.settings['dtype']}, {store.views} views"
    skipped = f", {len(store.skipped):,} skipped" if store.skipped else ""
    return f"{len(store):,} images{skipped}, {grid}, computed in {store.settings['precision']}, {size}"
