"""What a split gives: its captions and images, a batch at a time, and where the images come from."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from showattendtell.data.augment import Augmentation, AugmentedFiles, tells_sides
from showattendtell.data.images import ImageFiles, Preprocessing
from showattendtell.errors import UserError
from showattendtell.features.store import FeatureStore
from showattendtell.features.views import MIRRORED, draw_views
from showattendtell.records import Batch, Example, Part
from showattendtell.text.vocabulary import PAD, Vocabulary

ImageSource = Callable[[Sequence[int]], Tensor]
"""Positions within a split to what the model takes: (I, L, D) regions or (I, 3, H, W) pixels."""


View = Literal["plain", "mirrored", "drawn"]
"""How images are seen: as they are, as their mirror images, or, in training, in views drawn anew for each batch."""


class Source(Protocol):
    """Where images come from."""

    def __call__(self, examples: Sequence[Example], view: View = "plain") -> ImageSource:
        """What a split's images are read by, each by its example's position."""


def grid_source(store: FeatureStore, examples: Sequence[Example], view: View = "plain", seed: int = 0) -> ImageSource:
    """Regions from the store; the seed decides which of its views of each image are drawn."""
    rows = store.rows([example.image for example in examples])
    if view == "mirrored":
        return lambda positions: store.read(rows[torch.as_tensor(positions)], torch.full((len(positions),), MIRRORED))
    if view == "plain" or store.views == 1:
        return lambda positions: store[rows[torch.as_tensor(positions)]]
    sided = np.array([tells_sides(example) for example in examples])

    def read(positions: Sequence[int]) -> Tensor:
        views = draw_views(store.views, positions, sided[positions], seed)
        return store.read(rows[torch.as_tensor(positions)], views)

    return read


def hold(images: ImageSource, number: int, device: torch.device, at_a_time: int = 256) -> ImageSource:
    """The grids of a split's `number` images in the memory of a device, so that none is read or moved again.

    Raises `UserError` where they do not fit into what a GPU has left, or are pixels.
    """
    first = images([0])
    if first.ndim != 3:
        raise UserError("data.resident=true keeps the grids of a frozen encoder; leave it out with one that is trained")
    size = number * first.nbytes
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else size
    if size > free:
        raise UserError(
            f"data.resident=true needs {size / 1e9:.1f} GB for {number:,} grids, and {device} has {free / 1e9:.1f} GB "
            "left; leave it out, or store fewer bytes with features.dtype=int8"
        )
    held = torch.empty(number, *first.shape[1:], dtype=first.dtype, device=device)
    for start in range(0, number, at_a_time):
        positions = range(start, min(start + at_a_time, number))
        held[positions.start : positions.stop] = images(positions)
    return lambda positions: held[torch.as_tensor(positions, device=device)]


def pixel_source(
    preprocessing: Preprocessing,
    examples: Sequence[Example],
    view: View = "plain",
    augmentation: Augmentation | None = None,
) -> ImageSource:
    """Pixels from the image files, uint8; the augmentation decides which views are drawn.

    Reading raises `UserError` for a file that is broken.
    """
    if view == "drawn" and augmentation:
        return AugmentedFiles(examples, preprocessing, augmentation)
    files = ImageFiles([example.path for example in examples], preprocessing)

    def read(positions: Sequence[int]) -> Tensor:
        images = [files[position][1] for position in positions]
        for image in images:
            if isinstance(image, Exception):
                raise image
        pixels = torch.stack(images)  # type: ignore[arg-type]
        return pixels.flip(-1) if view == "mirrored" else pixels

    return read


class Tokens:
    """The tokens of N captions, one behind the other: 4 bytes a token and 8 a caption."""

    def __init__(self, captions: Iterable[Sequence[int]]):
        flat, ends = array("i"), array("q", [0])
        for tokens in captions:
            flat.extend(tokens)
            ends.append(len(flat))
        self._flat, self._ends = np.frombuffer(flat, dtype=np.int32), np.frombuffer(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, caption: int) -> NDArray[np.int32]:
        return self._flat[self._ends[caption] : self._ends[caption + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) T of every caption, `<eos>` included."""
        return np.diff(self._ends)

    def pad(self, captions: Sequence[int]) -> Tensor:
        """(B, T) the tokens of some of the captions, `<pad>` behind those of the shorter."""
        rows = [self[caption] for caption in captions]
        lengths = np.array([len(row) for row in rows])
        padded = np.full((len(rows), lengths.max()), PAD, dtype=np.int64)
        padded[np.arange(lengths.max()) < lengths[:, np.newaxis]] = np.concatenate(rows)
        return torch.from_numpy(padded)


class CaptionBatches(TorchDataset[Batch]):
    """All captions of a split as tokens; an item is the `Batch` of the captions asked for."""

    def __init__(self, examples: Sequence[Example], vocabulary: Vocabulary, images: ImageSource):
        self.tokens = Tokens(vocabulary.encode(caption.words) for example in examples for caption in example.captions)
        self.owners = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
        self.images, self._held = images, False
        self._names = [example.image for example in examples]

    def hold(self, device: torch.device) -> None:
        """Keep all images in the memory of a device."""
        if not self._held:
            self.images, self._held = hold(self.images, len(self._names), device), True

    def __len__(self) -> int:
        return len(self.tokens)

    def name(self, caption: int) -> str:
        """A caption by its image and its number among that image's, counted from 0: `dog.jpg#4`."""
        owner = self.owners[caption]
        return f"{self._names[owner]}#{caption - np.searchsorted(self.owners, owner)}"

    def __getitem__(self, captions: list[int]) -> Batch:
        positions, owners = np.unique(self.owners[captions], return_inverse=True)
        images = self.images(positions.tolist())
        return Batch(images, torch.from_numpy(owners), self.tokens.pad(captions), torch.from_numpy(positions))


class CaptionParts(TorchDataset[Part[Batch]]):
    """This process's parts of batches of captions."""

    def __init__(self, captions: CaptionBatches):
        self._captions = captions

    def __getitem__(self, part: Part[list[int]]) -> Part[Batch]:
        return Part(self._captions[part.content], part.share)


class Scene(NamedTuple):
    """Images to be captioned, and what people said of each."""

    images: Tensor
    names: list[str]
    references: list[list[tuple[str, ...]]]


class ImageBatches(TorchDataset[Scene]):
    """The images of a split in order, `batch_size` at a time."""

    def __init__(self, examples: Sequence[Example], images: ImageSource, batch_size: int):
        self.examples, self.images, self.batch_size = list(examples), images, batch_size

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __getitem__(self, index: int) -> Scene:
        if not 0 <= index < len(self):
            raise IndexError(index)
        positions = range(index * self.batch_size, min((index + 1) * self.batch_size, len(self.examples)))
        chosen = [self.examples[position] for position in positions]
        references = [[caption.words for caption in example.captions] for example in chosen]
        return Scene(self.images(list(positions)), [example.image for example in chosen], references)
