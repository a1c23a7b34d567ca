"""Storage format of grids, and the store that reads them.

A store is a folder:

    store.json     `Manifest`: settings and number of shards; written last, when the store is complete
    00000.npy ...  shards: grids (images, views, L, D) in float16, or for int8 records of steps (L,) and values (L, D)
    00000.json     `ShardRecord`: image names, checksums, unreadable images
    verified.json  size and time of each shard when it was last verified
    plan.json, 00000.progress  of a store that is being written; see `features.writer`
"""

import fcntl
import hashlib
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write, fadvise, open_folder
from showattendtell.settings import PositiveInt

StoredDtype = Literal["float16", "int8"]


class Float16:
    """Storage of grids in float16, which is also what is read."""

    def record(self, regions: int, dim: int) -> np.dtype:
        """Return the data type of one grid."""
        return np.dtype((np.float16, (regions, dim)))

    def pack(self, grids: Tensor) -> NDArray:
        """Convert (N, L, D), float32, to N stored grids."""
        return grids.to(torch.float16).contiguous().numpy()

    def unpack(self, packed: NDArray) -> Tensor:
        """Convert N stored grids to (N, L, D)."""
        return torch.from_numpy(packed)

    def are_finite(self, packed: NDArray) -> bool:
        """Return whether stored grids have neither NaN nor infinity."""
        exponent = np.uint16(0x7C00)  # the bits of the exponent, which are all 1 in infinity and NaN
        return not ((packed.view(np.uint16) & exponent) == exponent).any()


class Int8(Float16):
    """Storage of grids in int8: value = q * step, with q from -127 to 127 and step = max |value| / 127 per region.

    They are read as float32.
    """

    def record(self, regions: int, dim: int) -> np.dtype:
        return np.dtype([("step", np.float32, (regions,)), ("q", np.int8, (regions, dim))])

    def pack(self, grids: Tensor) -> NDArray:
        values = grids.float().numpy()
        packed = np.empty(len(values), self.record(*values.shape[1:]))
        packed["step"] = np.abs(values).max(axis=2) / 127
        step = packed["step"][..., np.newaxis]
        with np.errstate(invalid="ignore"):  # `are_finite` finds infinity and NaN by the step
            packed["q"] = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0))
        return packed

    def unpack(self, packed: NDArray) -> Tensor:
        values = packed["q"].astype(np.float32)
        values *= packed["step"][..., np.newaxis]
        return torch.from_numpy(values)

    def are_finite(self, packed: NDArray) -> bool:
        return bool(np.isfinite(packed["step"]).all())


STORAGE_FORMATS: dict[StoredDtype, Float16] = {"float16": Float16(), "int8": Int8()}


FORMAT = 2
"""Version of the storage format; 1 was a single safetensors file."""

BATCH_SIZE = 32
"""Images per batch, the unit of encoding, writing and checksums."""

LARGEST = 2**28
"""Largest number of values in the grids of an image, of all views."""

MANIFEST, PLAN, VERIFIED = "store.json", "plan.json", "verified.json"

Settings = Mapping[str, Any]
"""Everything that determines the values of the grids: the content of `Encoder.describe`, `dtype`, `views`, and settings
that differ from `DEFAULTS`."""

DEFAULTS: Settings = {"precision": "float32", "crop_mode": "center"}
"""Defaults of settings that a store records only if they differ."""


class FileStamp(NamedTuple):
    """Identification of the content of a photograph: size in bytes, time of the last change in ns, and CRC-32."""

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
        if status.st_size != self.size:
            return False
        return status.st_mtime_ns == self.changed or zlib.crc32(Path(path).read_bytes()) == self.checksum


class GridSettings(BaseModel):
    """The settings that the size of an image's grids follows from."""

    grid: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]
    dim: PositiveInt
    views: PositiveInt
    dtype: StoredDtype


def _storable(settings: dict[str, Any]) -> dict[str, Any]:
    """Raise a `ValueError` for settings of grids that no file may hold."""
    grid_settings = GridSettings.model_validate(settings, strict=True)
    if math.prod([*grid_settings.grid, grid_settings.dim, grid_settings.views]) > LARGEST:
        raise ValueError("the grids of an image are too large")
    return settings


class Manifest(BaseModel):
    """Content of `store.json`.

    relative_error: |stored - computed| / |computed|, Euclidean norms over all grids.
    """

    format: int
    dataset: str
    settings: Annotated[dict[str, Any], AfterValidator(_storable)]
    shards: int
    relative_error: float


class ShardRecord(BaseModel):
    """Record of a shard.

    images: names by position, unreadable images included.
    skipped: unreadable images with the reason; their grids are 0.
    checksums: CRC-32 of each batch's bytes.
    lost, whole: sums of squares over all values of (stored - computed) and of computed.
    stamps: of the photographs when they were encoded; empty in stores of earlier versions.
    """

    images: list[str]
    skipped: dict[str, str]
    checksums: list[int]
    lost: float
    whole: float
    stamps: dict[str, FileStamp] = {}


Content = TypeVar("Content", Manifest, ShardRecord)


def shard_file(path: Path, number: int) -> Path:
    """Return the file with the grids of a shard."""
    return path / f"{number:05}.npy"


def record_file(path: Path, number: int) -> Path:
    """Return the file with the record of a shard, which exists if the shard is complete."""
    return path / f"{number:05}.json"


def journal_file(path: Path, number: int) -> Path:
    """Return the file with the journal of a shard that is being written."""
    return path / f"{number:05}.progress"


def is_finished(path: Path) -> bool:
    """Return whether a folder has a complete store. If it has a plan, too, its writer was killed."""
    return (path / MANIFEST).is_file() and not (path / PLAN).exists()


def grid_type(settings: Settings) -> np.dtype:
    """Return the data type of one view of an image."""
    rows, columns = settings["grid"]
    return STORAGE_FORMATS[settings["dtype"]].record(rows * columns, settings["dim"])


def shard_header(settings: Settings, images: int) -> bytes:
    """Return the header of a shard, a `.npy` file, with that many images. Its length is a multiple of 64 bytes."""
    grid, head = grid_type(settings), io.BytesIO()
    descr, shape = np.lib.format.dtype_to_descr(grid.base), (images, settings["views"], *grid.shape)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    return head.getvalue()


def image_bytes(settings: Settings) -> int:
    """Return the size in bytes of an image's grids, all views."""
    return settings["views"] * grid_type(settings).itemsize


def shard_bytes(settings: Settings, images: int) -> int:
    """Return the size of a shard in bytes."""
    return len(shard_header(settings, images)) + images * image_bytes(settings)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a store.

    Raises:
        UserError: it is missing, damaged or of another format.
    """
    if path.is_dir() and not is_finished(path):
        raise UserError(f"{path} is not a complete feature store; run prepare again, or delete the folder")
    manifest = _read(path / MANIFEST, Manifest)
    if manifest.format != FORMAT:
        raise UserError(
            f"{path} has format {manifest.format}, and this version reads {FORMAT}; set cache to another folder, or "
            "delete this one; the next run recreates it"
        )
    return manifest


def read_record(path: Path, number: int) -> ShardRecord:
    """Read the record of a shard. Raise `UserError` if it is missing or damaged."""
    return _read(record_file(path, number), ShardRecord)


def _read(file: Path, cls: type[Content]) -> Content:
    try:
        return cls.model_validate_json(file.read_bytes())
    except OSError as error:
        raise damaged(file.parent, f"{file.name}: {error.strerror}") from None
    except ValidationError:
        raise damaged(file.parent, f"{file.name} is not what was written") from None


def damaged(path: Path, reason: str) -> UserError:
    """Return the error for a damaged store."""
    return UserError(f"{path} is damaged ({reason}); delete the folder; prepare and train recreate it")


def write_json(file: Path, content: BaseModel | Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    text = content.model_dump_json(indent=1) if isinstance(content, BaseModel) else json.dumps(content, indent=1)
    with atomic_write(file) as stream:
        stream.write(f"{text}\n".encode())


def check_same_settings(path: Path, made_with: Settings, expected: Settings) -> None:
    """Raise `UserError` if settings differ; the message names the first difference."""
    for key in {**made_with, **expected}:
        value, stored = (settings.get(key, DEFAULTS.get(key)) for settings in (expected, made_with))
        if isinstance(value, Mapping) and isinstance(stored, Mapping):
            check_same_settings(path, stored, value)
        elif value != stored:
            raise UserError(
                f"{path} was made with {key}={stored}, this run has {key}={value}; set cache to another "
                "folder, or delete this one; the next run recreates it"
            )


SHARD_SIZE = 1024
"""Maximum number of images per shard."""

SHARDS = 64
"""Number of shards of a store with images for as many batches, so that so many processes can write it."""


def shard_size(images: int) -> int:
    """Return the images per shard of a store: whole batches, and the same for any number of processes."""
    return min(BATCH_SIZE * math.ceil(images / (SHARDS * BATCH_SIZE)), SHARD_SIZE)


class StorePlan(NamedTuple):
    """Planned content of a store: the grids of `images` in this order."""

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
        """Size of all shards in bytes."""
        return sum(shard_bytes(self.settings, len(images)) for images in self.shards)

    def describe(self) -> dict[str, Any]:
        """Return the content of `plan.json`. An unfinished store is continued if it is equal."""
        names = hashlib.sha256("\n".join(self.images).encode()).hexdigest()
        content = {"settings": self.settings, "shard_size": self.shard_size, "images_sha256": names}
        return json.loads(json.dumps({"format": FORMAT, "dataset": self.dataset, **content}))


class EncodedBatch(NamedTuple):
    """An encoded batch.

    images   names of the readable images
    grids    (N, views, L, D) their grids, in float32
    skipped  errors of the unreadable images, by name
    stamps   of the files of the readable images
    """

    images: Sequence[str]
    grids: Tensor
    skipped: Mapping[str, str]
    stamps: Mapping[str, FileStamp] = MappingProxyType({})


Encode = Callable[[Iterable[Sequence[str]]], Iterator[EncodedBatch]]
"""Encodes batches of images, which are given by their names and may be requested ahead."""


@contextmanager
def report_write_errors(path: Path, plan: StorePlan) -> Iterator[None]:
    """Convert an error of writing, such as a full disk, to `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); it needs {decimal(plan.num_bytes)}: make room, or set cache "
            "to a folder on another disk"
        ) from None


class FeatureStore:
    """Grids by row, read from disk on request.

    Files are opened at their first use and read with `pread`, which has no file position. A store therefore works in
    other processes, forked or not, and its data are in the page cache instead of this process's memory.

    Attributes:
        settings: with which the grids were computed.
        views: grids per image.
        relative_error: of storage, see `Manifest`.
        skipped: unreadable images, with the reason.
        stamps: of the photographs when they were encoded.

    Raises:
        UserError: the store is incomplete or damaged, or its settings differ from `expected`.
    """

    def __init__(self, path: Path, expected: Settings | None = None):
        self.path = path
        manifest = read_manifest(path)
        self.settings: Settings = manifest.settings
        if expected is not None:
            check_same_settings(path, self.settings, expected)
        self.relative_error, self.views = manifest.relative_error, manifest.settings["views"]
        self.skipped: dict[str, str] = {}
        self.stamps: dict[str, FileStamp] = {}
        self._numbers, self._grid = STORAGE_FORMATS[self.settings["dtype"]], grid_type(self.settings)
        self._files: dict[int, int] = {}
        self._rows: dict[str, int] = {}
        records = [read_record(path, i) for i in range(manifest.shards)]
        self._firsts = np.cumsum([0, *(len(record.images) for record in records)])
        self._starts = np.array([len(shard_header(self.settings, len(record.images))) for record in records], int)
        for i, record in enumerate(records):
            file, expected_size = shard_file(path, i), shard_bytes(self.settings, len(record.images))
            size = file.stat().st_size if file.is_file() else 0
            if size != expected_size:
                raise damaged(path, f"{file.name} has {size} bytes, {expected_size} were written")
            named = enumerate(record.images, self._firsts[i].item())
            self._rows |= {image: row for row, image in named if image not in record.skipped}
            self.skipped |= record.skipped
            self.stamps |= record.stamps

    def rows(self, images: Sequence[str]) -> Tensor:
        """Return the rows (I,) of the named images. Raise `UserError` if the store lacks one."""
        unknown = [image for image in images if image not in self._rows]
        if unknown:
            raise UserError(
                f"{self.path} lacks {len(unknown)} of the data set's images, the first is {unknown[0]}; delete the "
                "folder; the next run recreates it"
            )
        return torch.tensor([self._rows[image] for image in images], dtype=torch.long)

    def __contains__(self, image: str) -> bool:
        return image in self._rows

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
        # Rows are numbered through all shards; shard k has the rows from _firsts[k] on. In its file, after a header of
        # _starts[k] bytes, the views of an image follow each other. View v of row r has the offset
        # _starts[k] + (r - _firsts[k]) * image_bytes + v * grid_bytes.
        shards = np.searchsorted(self._firsts, rows.numpy(), side="right") - 1
        images = self._starts[shards] + (rows.numpy() - self._firsts[shards]) * image_bytes(self.settings)
        offsets = (images + views.numpy() * self._grid.itemsize).tolist()
        content = np.empty((len(rows), self._grid.itemsize), np.uint8)
        try:
            files = [self._open(shard) for shard in shards.tolist()]
            for file, offset in zip(files, offsets, strict=True):  # the disk can then read all grids at once
                fadvise(file, "WILLNEED", offset, self._grid.itemsize)
            for file, offset, shard, buffer in zip(files, offsets, shards, content, strict=True):
                if os.preadv(file, [buffer.data], offset) != len(buffer):
                    raise damaged(self.path, f"{shard_file(self.path, shard).name} ends too early")
        except OSError as error:
            file_name = f"{Path(error.filename).name}: " if error.filename else ""
            raise damaged(self.path, f"{file_name}{error.strerror}") from None
        return self._numbers.unpack(np.ndarray((len(rows),), self._grid, content))

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


def verify(path: Path, shards: Iterable[int] | None = None) -> Iterator[int]:
    """Verify checksums, and that all values are finite. Yield the number of images of each verified batch.

    Args:
        shards: by default all.

    Raises:
        UserError: at the first invalid batch.
    """
    manifest = read_manifest(path)
    numbers, grid = STORAGE_FORMATS[manifest.settings["dtype"]], grid_type(manifest.settings)
    for number in range(manifest.shards) if shards is None else shards:
        record, shard = read_record(path, number), shard_file(path, number)
        with shard.open("rb", buffering=0) as file:
            fadvise(file.fileno(), "SEQUENTIAL")
            if file.read(len(header := shard_header(manifest.settings, len(record.images)))) != header:
                raise damaged(path, f"the header of {shard.name}")
            for batch, checksum in enumerate(record.checksums):
                images = record.images[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]
                content = file.read(len(images) * image_bytes(manifest.settings))
                where = f"{shard.name}: the grids of {images[0]} to {images[-1]}"
                if zlib.crc32(content) != checksum:
                    raise damaged(path, f"{where} do not match their checksum")
                if not numbers.are_finite(np.frombuffer(content, grid.base)):
                    raise damaged(path, f"{where} are not finite")
                yield len(images)


def verify_changed(path: Path) -> None:
    """Verify the shards whose size or time differs from when they were last verified, all at the first use.

    Of several processes one verifies, and the others wait for its mark. In a cache that may not be written there is no
    mark, and every process verifies at the same time.

    Raises:
        UserError: for the first invalid batch.
    """
    if not _changed_shards(path, _shard_stamps(path)):
        return
    console = Console(stderr=True)
    with open_folder(path) as folder:
        if os.access(path, os.W_OK):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                console.print("waiting for another process to verify the stored grids")
                fcntl.flock(folder, fcntl.LOCK_EX)
        stamps = _shard_stamps(path)
        changed = _changed_shards(path, stamps)
        if not changed:  # another process has verified them meanwhile
            return
        total = sum(len(read_record(path, number).images) for number in changed)
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("verifying the stored grids", total=total)
            for images in verify(path, changed):
                progress.advance(bar, images)
        with suppress(OSError):
            write_json(path / VERIFIED, stamps)


def _shard_stamps(path: Path) -> dict[str, list[int]]:
    """Return size and time of each shard by its file name."""
    files = [shard_file(path, i) for i in range(read_manifest(path).shards)]
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _changed_shards(path: Path, stamps: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the shards whose stamps differ from when they were last verified."""
    verified: Any = None
    with suppress(OSError, ValueError):
        verified = json.loads((path / VERIFIED).read_bytes())
    stamps_by_file = verified if isinstance(verified, dict) else {}
    return [i for i, (name, stamp) in enumerate(stamps.items()) if stamps_by_file.get(name) != stamp]
