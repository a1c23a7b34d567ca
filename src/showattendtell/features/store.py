"""Read a data set's grids from the shards of `writer`; only image names are kept in memory."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.features.layout import (
    NUMBERS,
    Settings,
    check_same_settings,
    damaged,
    grid_type,
    image_bytes,
    read_manifest,
    read_record,
    shard_bytes,
    shard_file,
    shard_header,
)
from showattendtell.runtime.files import fadvise


class FeatureStore:
    """Grids by row, read from disk on request.

    Files are opened at their first use and read by `pread`, so a store works in other processes, forked or not, and the
    data count as the system's page cache instead of this process's memory.

    Raises `UserError` if the store's settings differ from `expected`, naming the first difference.
    """

    def __init__(self, path: Path, expected: Settings | None = None):
        self.path = path
        manifest = read_manifest(path)
        self.settings: Settings = manifest.settings
        if expected is not None:
            check_same_settings(path, self.settings, expected)
        self.relative_error, self.views = manifest.relative_error, manifest.settings["views"]
        self.skipped: dict[str, str] = {}
        self._numbers, self._grid = NUMBERS[self.settings["dtype"]], grid_type(self.settings)
        self._files: dict[int, int] = {}
        self._rows: dict[str, int] = {}
        records = [read_record(path, number) for number in range(manifest.shards)]
        self._firsts = np.cumsum([0, *(len(record.images) for record in records)])
        self._starts = np.array([len(shard_header(self.settings, len(record.images))) for record in records], int)
        for number, record in enumerate(records):
            self._check_size(number, len(record.images))
            named = enumerate(record.images, self._firsts[number].item())
            self._rows |= {image: row for row, image in named if image not in record.skipped}
            self.skipped |= record.skipped

    def _check_size(self, number: int, images: int) -> None:
        file, expected = shard_file(self.path, number), shard_bytes(self.settings, images)
        size = file.stat().st_size if file.is_file() else 0
        if size != expected:
            raise damaged(self.path, f"{file.name} has {size} bytes, {expected} were written")

    def rows(self, images: Sequence[str]) -> Tensor:
        """Return the rows of the named images; a `UserError` if the store lacks one."""
        unknown = [image for image in images if image not in self._rows]
        if unknown:
            raise UserError(
                f"{self.path} lacks {len(unknown)} of the data set's images, the first is {unknown[0]}; remove the "
                "folder and it will be made again"
            )
        return torch.tensor([self._rows[image] for image in images], dtype=torch.long)

    def __contains__(self, image: str) -> bool:
        return image in self._rows

    def __len__(self) -> int:
        """Number of images with a grid."""
        return len(self._rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return grids (I, L, D) of the unchanged images at rows (I,); float16, or float32 for int8 stores."""
        return self.read(rows, torch.zeros_like(rows))

    def read(self, rows: Tensor, views: Tensor) -> Tensor:
        """Like `store[rows]`, with the view of each image from `views` (I,).

        Raises `IndexError` for a view that is not in the store.
        """
        if (views >= self.views).any():
            raise IndexError(f"{self.path} has {self.views} views of each image, and no view {int(views.max())}")
        numbers = np.searchsorted(self._firsts, rows.numpy(), side="right") - 1
        images = self._starts[numbers] + (rows.numpy() - self._firsts[numbers]) * image_bytes(self.settings)
        offsets = (images + views.numpy() * self._grid.itemsize).tolist()
        content = np.empty((len(rows), self._grid.itemsize), np.uint8)
        with self._telling_faults():
            files = [self._open(number) for number in numbers.tolist()]
            for file, offset in zip(files, offsets, strict=True):  # let the disk read ahead for all grids
                fadvise(file, "WILLNEED", offset, self._grid.itemsize)
            for file, offset, number, own in zip(files, offsets, numbers, content, strict=True):
                if os.preadv(file, [own.data], offset) != len(own):
                    raise damaged(self.path, f"{shard_file(self.path, number).name} ends too early")
        return self._numbers.unpack(np.ndarray((len(rows),), self._grid, content))

    @contextmanager
    def _telling_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            file = f"{Path(fault.filename).name}: " if fault.filename else ""
            raise damaged(self.path, f"{file}{fault.strerror}") from None

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
