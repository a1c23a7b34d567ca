"""From image names to grids: reads the files in processes of their own, and runs the encoder on a batch at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from showattendtell.data.images import ImageFiles
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.engines import Computed, Engine, EngineName, start_engine
from showattendtell.features.plan import Encoded
from showattendtell.features.views import view_of


@dataclass(frozen=True)
class ImageEncoding:
    """Encodes batches of images; an `Encode` that may be handed to another process.

    paths: of the images, by name.
    engine, precision: what computes, and in which numbers.
    readers: processes that read files; 0 reads them here.
    """

    encoder: Encoder
    paths: Mapping[str, str]
    views: int
    skip_unreadable: bool
    engine: EngineName = "torch"
    precision: Computed = "float32"
    readers: int = 0

    def __call__(self, batches: Sequence[Sequence[str]]) -> Iterator[Encoded]:
        """Raises `UserError` for an image that cannot be read, unless such are skipped."""
        for images, read in zip(batches, self._read(batches), strict=True):
            if read.faults and not self.skip_unreadable:
                fault = next(iter(read.faults.values()))
                raise UserError(f"{fault}, or pass over such images with dataset.skip_unreadable=true")
            skipped = {images[place]: str(fault) for place, fault in read.faults.items()}
            readable = [images[place] for place in read.places]
            yield Encoded(readable, self._encode(read.pixels, readable), skipped)

    def _read(self, batches: Sequence[Sequence[str]]) -> Iterator["Read"]:
        files = ImageFiles([self.paths[image] for images in batches for image in images], self.encoder.preprocessing)
        positions = iter(range(len(files)))
        in_batches = [[next(positions) for _ in images] for images in batches]
        readers = self.readers if len(batches) > 1 else 0
        return iter(
            DataLoader(
                files,
                batch_sampler=in_batches,
                collate_fn=_collate,
                num_workers=readers,
                pin_memory=torch.cuda.is_available(),
                generator=torch.Generator(),  # its own, so that later draws are those of a run that finds the grids
            )
        )

    def _encode(self, pixels: Tensor, images: Sequence[str]) -> Tensor:
        """(N, views, L, D), float32"""
        if not images:
            return torch.zeros(0, self.views, self.encoder.grid[0] * self.encoder.grid[1], self.encoder.dim)
        return torch.stack([self._run(view_of(pixels, images, view)) for view in range(self.views)], dim=1)

    @cached_property
    def _run(self) -> Engine:
        return start_engine(self.encoder, self.engine, self.precision)


class Read(NamedTuple):
    """A batch of images: the pixels of those that could be read, their places in it, and the faults of the others."""

    pixels: Tensor
    places: list[int]
    faults: dict[int, UserError]


def _collate(items: Sequence[tuple[int, Tensor | UserError]]) -> Read:
    faults = {place: item for place, (_, item) in enumerate(items) if isinstance(item, UserError)}
    read = {place: item for place, (_, item) in enumerate(items) if isinstance(item, Tensor)}
    return Read(torch.stack(list(read.values())) if read else torch.zeros(0, 3, 1, 1), list(read), faults)


@contextmanager
def on_gpu(encoder: Encoder) -> Iterator[None]:
    """The encoder on the graphics processor, and back."""
    encoder.to("cuda").to(memory_format=torch.channels_last)
    try:
        yield
    finally:
        encoder.to("cpu")
