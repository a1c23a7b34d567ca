"""The feature cache: grids of a frozen encoder on disk.

A store is a folder. Its shards are numpy arrays, each with a record of its own, so that several
processes and machines can write one store and an interrupted one loses one shard at most.

    store.json      `Manifest`: settings and number of shards, written last
    00000.npy ...   shards (images, views, L, D) of float16, or of int8 with a step per region
    00000.json      `ShardRecord`: image names, unreadable images; written after the shard
    plan.json       the manifest of an unfinished store, see `StorePlan`
"""

import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.files import fadvise, open_regular, read_regular
from showattendtell.settings import PositiveInt, leaves

FORMAT = 4
MANIFEST, PLAN = "store.json", "plan.json"

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
    dataset: str
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
        self._files: dict[int, Any] = {}
        self._header = len(shard_header(self.settings, 1))  # of all shards: numpy leaves room for the number of images
        # Rows are numbered through all shards; shard k has the rows from _firsts[k] on. In its file, after the header,
        # the views of an image follow each other.
        names, firsts = list[str](), list[int]()
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

    def _open(self, number: int) -> int:
        if number not in self._files:
            self._files[number] = open_regular(shard_file(self.path, number))
            fadvise(self._files[number].fileno(), "RANDOM")
        descriptor: int = self._files[number].fileno()
        return descriptor

    def __getstate__(self) -> dict[str, Any]:
        """Omit open files: another process opens its own."""
        return {**self.__dict__, "_files": {}}
