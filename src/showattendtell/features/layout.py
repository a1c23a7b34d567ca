"""What a store of grids is on disk: a folder of shards, each with a record of what is in it.

    store.json  the format, how the grids were made, the number of shards; without it the store is not finished
    00000.npy   the grids of the first images, (images, views, L, D), as `numpy.load` reads them; see `numbers`
    00000.json  the names of these images, which could not be read, and a checksum for every `BATCH_SIZE` of them

Until a store is finished it has `plan.json` for `store.json`, and a shard that is being written `00000.progress`, a
line a batch, for `00000.json`.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from showattendtell.errors import UserError
from showattendtell.features.numbers import NUMBERS
from showattendtell.files import whole_file

FORMAT = 2
"""1 was a single safetensors file."""

BATCH_SIZE = 32
"""Images that are encoded, written and summed up together."""

MANIFEST, PLAN = "store.json", "plan.json"

Settings = Mapping[str, Any]
"""All that decides the values of the grids: what `Encoder.describe` says, `dtype` and `views`; and what is not
`USUAL`."""

USUAL: Settings = {"precision": "float32", "crop_mode": "center"}
"""Settings that stand only in the stores where they are other than this."""


class Manifest(BaseModel):
    """What `store.json` says.

    relative_error: |stored - computed| / |computed|, over all grids.
    """

    format: int
    dataset: str
    settings: dict[str, Any]
    shards: int
    relative_error: float


class ShardRecord(BaseModel):
    """What is in a shard.

    images: names by position, also of those that could not be read.
    skipped: the latter with the reason; their grids are 0.
    checksums: CRC-32 of every batch's bytes.
    lost, whole: sums of squares over all numbers, of (stored - computed) and of computed.
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
    """The numbers of one view of an image."""
    rows, columns = settings["grid"]
    return NUMBERS[settings["dtype"]].record(rows * columns, settings["dim"])


def shard_header(settings: Settings, images: int) -> bytes:
    """The head of a `.npy` file of that many images."""
    grid, head = grid_type(settings), io.BytesIO()
    descr, shape = np.lib.format.dtype_to_descr(grid.base), (images, settings["views"], *grid.shape)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    return head.getvalue()


def image_bytes(settings: Settings) -> int:
    """The size of an image's grids, all views."""
    return settings["views"] * grid_type(settings).itemsize


def shard_bytes(settings: Settings, images: int) -> int:
    return len(shard_header(settings, images)) + images * image_bytes(settings)


def read_manifest(path: Path) -> Manifest:
    """Raises `UserError` for what is no store, is damaged, or of another format."""
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
    """Raises `UserError` for one that is missing or damaged."""
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
    """A JSON file that is there with all its content, or not at all."""
    text = content.model_dump_json(indent=1) if isinstance(content, BaseModel) else json.dumps(content, indent=1)
    with whole_file(file) as stream:
        stream.write(f"{text}\n".encode())


def refuse_difference(path: Path, made_with: Settings, expected: Settings) -> None:
    """Raise a `UserError` that names the first setting in which the two differ."""
    for key in {**made_with, **expected}:
        ours, theirs = (settings.get(key, USUAL.get(key)) for settings in (expected, made_with))
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            refuse_difference(path, theirs, ours)
        elif ours != theirs:
            raise UserError(
                f"{path} was made with {key}={theirs}, this run has {key}={ours}; set cache to another "
                "folder, or remove this one and it will be made again"
            )
