"""Storage formats of grids: float16, or int8 with one step per region."""

import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from rich.filesize import decimal
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write

Precision = Literal["float16", "int8"]


class GridFormat(ABC):
    """A storage format of grids."""

    @abstractmethod
    def record(self, regions: int, dim: int) -> np.dtype:
        """Return the data type of one grid."""

    @abstractmethod
    def pack(self, grids: Tensor) -> NDArray:
        """Convert (N, L, D), float32, to N stored grids."""

    @abstractmethod
    def unpack(self, packed: NDArray) -> Tensor:
        """Convert N stored grids to (N, L, D)."""

    @abstractmethod
    def are_finite(self, packed: NDArray) -> bool: ...


class Float16(GridFormat):
    """Stored and read as float16."""

    def record(self, regions: int, dim: int) -> np.dtype:
        return np.dtype((np.float16, (regions, dim)))

    def pack(self, grids: Tensor) -> NDArray:
        return grids.to(torch.float16).contiguous().numpy()

    def unpack(self, packed: NDArray) -> Tensor:
        return torch.from_numpy(packed)

    def are_finite(self, packed: NDArray) -> bool:
        exponent = np.uint16(0x7C00)  # all ones for infinity and NaN
        return not ((packed.view(np.uint16) & exponent) == exponent).any()


class Int8(GridFormat):
    """value = q * step with q from -127 to 127 and step = max |value| / 127 per region. Read as float32."""

    def record(self, regions: int, dim: int) -> np.dtype:
        return np.dtype([("step", np.float32, (regions,)), ("q", np.int8, (regions, dim))])

    def pack(self, grids: Tensor) -> NDArray:
        values = grids.float().numpy()
        packed = np.empty(len(values), self.record(*values.shape[1:]))
        packed["step"] = np.abs(values).max(axis=2) / 127
        step = packed["step"][..., np.newaxis]
        with np.errstate(invalid="ignore"):  # the step marks infinity
            packed["q"] = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0))
        return packed

    def unpack(self, packed: NDArray) -> Tensor:
        values = packed["q"].astype(np.float32)
        values *= packed["step"][..., np.newaxis]
        return torch.from_numpy(values)

    def are_finite(self, packed: NDArray) -> bool:
        return bool(np.isfinite(packed["step"]).all())


NUMBERS: dict[Precision, GridFormat] = {"float16": Float16(), "int8": Int8()}


FORMAT = 2
"""Version of the storage format; 1 was a single safetensors file."""

BATCH_SIZE = 32
"""Images per batch of encoding, writing and checksums."""

MANIFEST, PLAN = "store.json", "plan.json"

Settings = Mapping[str, Any]
"""Everything that decides the values of the grids: the content of `Encoder.describe`, `dtype`, `views`, and settings
that differ from `USUAL`."""

USUAL: Settings = {"precision": "float32", "crop_mode": "center"}
"""Settings that a store records only if they differ from these."""


class Manifest(BaseModel):
    """Content of `store.json`.

    relative_error: |stored - computed| / |computed|, over all grids.
    """

    format: int
    dataset: str
    settings: dict[str, Any]
    shards: int
    relative_error: float


class ShardRecord(BaseModel):
    """Content of a shard.

    images: names by position, including unreadable images.
    skipped: unreadable images with the reason; their grids are 0.
    checksums: CRC-32 of each batch's bytes.
    lost, whole: sums of squares over all values of (stored - computed) and of computed.
    """

    images: list[str]
    skipped: dict[str, str]
    checksums: list[int]
    lost: float
    whole: float


Content = TypeVar("Content", Manifest, ShardRecord)


def shard_file(path: Path, number: int) -> Path:
    return path / f"{number:05}.npy"


def record_file(path: Path, number: int) -> Path:
    return path / f"{number:05}.json"


def journal_file(path: Path, number: int) -> Path:
    return path / f"{number:05}.progress"


def is_finished(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def grid_type(settings: Settings) -> np.dtype:
    """Return the data type of one view of an image."""
    rows, columns = settings["grid"]
    return NUMBERS[settings["dtype"]].record(rows * columns, settings["dim"])


def shard_header(settings: Settings, images: int) -> bytes:
    """Return the header of a `.npy` file for that many images."""
    grid, head = grid_type(settings), io.BytesIO()
    descr, shape = np.lib.format.dtype_to_descr(grid.base), (images, settings["views"], *grid.shape)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    return head.getvalue()


def image_bytes(settings: Settings) -> int:
    """Return the size in bytes of an image's grids, all views."""
    return settings["views"] * grid_type(settings).itemsize


def shard_bytes(settings: Settings, images: int) -> int:
    return len(shard_header(settings, images)) + images * image_bytes(settings)


def read_manifest(path: Path) -> Manifest:
    """Read a store's manifest. Raises `UserError` for a missing, damaged or incompatible one."""
    if path.is_dir() and not is_finished(path):
        raise UserError(f"{path} is no finished store of grids; run prepare again, or remove the folder")
    manifest = _read(path / MANIFEST, Manifest)
    if manifest.format != FORMAT:
        raise UserError(
            f"{path} has format {manifest.format}, and this version reads {FORMAT}; set cache to another folder, or "
            "remove this one and it will be made again"
        )
    return manifest


def read_record(path: Path, number: int) -> ShardRecord:
    """Read a shard's record. Raises `UserError` if it is missing or damaged."""
    return _read(record_file(path, number), ShardRecord)


def _read(file: Path, kind: type[Content]) -> Content:
    try:
        return kind.model_validate_json(file.read_bytes())
    except OSError as fault:
        raise damaged(file.parent, f"{file.name}: {fault.strerror}") from None
    except ValidationError:
        raise damaged(file.parent, f"{file.name} is not what was written") from None


def damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged ({reason}); remove the folder and it will be made again")


def write_whole(file: Path, content: BaseModel | Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    text = content.model_dump_json(indent=1) if isinstance(content, BaseModel) else json.dumps(content, indent=1)
    with atomic_write(file) as stream:
        stream.write(f"{text}\n".encode())


def check_same_settings(path: Path, made_with: Settings, expected: Settings) -> None:
    """Raise a `UserError` that names the first setting that differs."""
    for key in {**made_with, **expected}:
        ours, theirs = (settings.get(key, USUAL.get(key)) for settings in (expected, made_with))
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            check_same_settings(path, theirs, ours)
        elif ours != theirs:
            raise UserError(
                f"{path} was made with {key}={theirs}, this run has {key}={ours}; set cache to another "
                "folder, or remove this one and it will be made again"
            )


SHARD_SIZE = 1024
"""Images per shard."""


class StorePlan(NamedTuple):
    """Planned content of a store: the grids of the images, in this order."""

    dataset: str
    settings: Settings
    images: Sequence[str]
    shard_size: int = SHARD_SIZE

    @property
    def shards(self) -> list[Sequence[str]]:
        """Return the images of each shard."""
        return [self.images[start : start + self.shard_size] for start in range(0, len(self.images), self.shard_size)]

    @property
    def num_bytes(self) -> int:
        return sum(shard_bytes(self.settings, len(images)) for images in self.shards)

    def describe(self) -> dict[str, Any]:
        """Return JSON data that must be equal for an unfinished store to be continued."""
        names = hashlib.sha256("\n".join(self.images).encode()).hexdigest()
        own = {"settings": self.settings, "shard_size": self.shard_size, "images_sha256": names}
        return json.loads(json.dumps({"format": FORMAT, "dataset": self.dataset, **own}))


class EncodedBatch(NamedTuple):
    """A batch of images: names of the readable ones and their grids (N, views, L, D), and the errors of the
    others."""

    images: Sequence[str]
    grids: Tensor
    skipped: Mapping[str, str]


Encode = Callable[[Sequence[Sequence[str]]], Iterator[EncodedBatch]]
"""Maps the batches of a shard, as names, to their grids."""


@contextmanager
def report_errors(path: Path, plan: StorePlan) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise UserError(
            f"{path} cannot be written ({fault.strerror}); it needs {decimal(plan.num_bytes)}: make room, or set cache "
            "to a folder on another disk"
        ) from None
