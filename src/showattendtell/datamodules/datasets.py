"""Captions and images of a split in batches, and image sources. Sizes are those of `showattendtell.types`."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset as TorchDataset

from showattendtell.data.assembly import drop_unreadable
from showattendtell.data.augmentation import Augmentation, augmented_files, mentions_sides
from showattendtell.data.images import ImageFiles, Preprocessing
from showattendtell.data.vocabulary import PAD, Vocabulary
from showattendtell.datamodules.samplers import BatchRequest
from showattendtell.errors import UserError
from showattendtell.features.extract import MIRRORED, Extraction, draw_views, feature_path, open_features
from showattendtell.features.store import FeatureStore
from showattendtell.models.encoder import Encoder
from showattendtell.types import Batch, Dataset, Example, ShardedBatch


class ImageSource(Protocol):
    """Function from positions in a split to model inputs: regions (I, L, D) or pixels (I, 3, H, W)."""

    def __call__(self, positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
        """Return the images.

        Args:
            draw: epoch and number of the training batch; with the seed they decide which view of an image is drawn.
        """


View = Literal["plain", "mirrored", "drawn"]
"""View of images: unchanged, mirrored, or (for training) drawn at random for each batch."""


class Source(Protocol):
    """Function from examples to their image source."""

    def __call__(self, examples: Sequence[Example], view: View = "plain") -> ImageSource:
        """Return the image source of a split, in which an image has the position of its example."""


def grid_source(store: FeatureStore, examples: Sequence[Example], view: View = "plain", seed: int = 0) -> ImageSource:
    """Return a source of regions from the feature store; `seed` decides which stored view of an image is drawn."""
    rows = store.rows([example.image for example in examples])
    sided = np.array([mentions_sides(example) for example in examples] if view == "drawn" and store.views > 1 else [])

    def read(positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
        chosen = rows[list(positions)]
        if view == "mirrored":
            return store.read(chosen, torch.full_like(chosen, MIRRORED))
        if view == "plain" or store.views == 1:
            return store[chosen]
        return store.read(chosen, draw_views(store.views, sided, seed, draw)[list(positions)])

    return read


def pixel_source(
    preprocessing: Preprocessing,
    examples: Sequence[Example],
    view: View = "plain",
    augmentation: Augmentation | None = None,
) -> ImageSource:
    """Return a source of uint8 pixels from image files; the augmentation decides which views are drawn.

    Raises:
        UserError: from the source, for an image file that cannot be read.
    """
    if view == "drawn" and augmentation:
        return augmented_files(examples, preprocessing, augmentation)
    files = ImageFiles([example.path for example in examples], preprocessing)

    def read(positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
        images = [files[position][1] for position in positions]
        for image in images:
            if isinstance(image, Exception):
                raise image
        pixels = torch.stack(images)  # type: ignore[arg-type]
        return pixels.flip(-1) if view == "mirrored" else pixels

    return read


def pixels_of(encoder: Encoder, augmentation: Augmentation | None = None) -> Source:
    """Return the source of the pixels that an encoder reads."""
    return lambda examples, view="plain": pixel_source(encoder.preprocessing, examples, view, augmentation)


def open_source(
    dataset: Dataset,
    encoder: Encoder,
    folder: Path,
    extraction: Extraction,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
) -> tuple[Source, Dataset]:
    """Return the source of the model's images, and the data set without unreadable images.

    Grids of a frozen encoder are computed once and read from the feature store; if it has several views per image,
    training draws one for each batch. A trainable encoder reads pixels; `augmentation` changes the training images.

    Args:
        folder: parent folder of all feature stores.
        seed: decides which stored views are drawn.
        skip_unreadable: leave out images that cannot be read, instead of raising `UserError`.

    Raises:
        UserError: augmentation with a frozen encoder; an unreadable image; a store with other settings.
    """
    if encoder.trainable:
        readable = drop_unreadable(dataset, ["train", "val"]) if skip_unreadable else dataset
        return pixels_of(encoder, augmentation), readable
    if augmentation:
        raise UserError(
            "augment changes what a trained encoder sees; set encoder.trainable=true, or store features.views=2"
        )
    path = feature_path(folder, dataset, encoder, extraction)
    store, readable = open_features(dataset, encoder, path, skip_unreadable, extraction)

    def source(examples: Sequence[Example], view: View = "plain") -> ImageSource:
        if view == "mirrored" and store.views == 1:  # the store has no mirror images
            return pixel_source(encoder.preprocessing, examples, view)
        return grid_source(store, examples, view, seed)

    return source, readable


class PackedTokens:
    """Tokens of N captions, concatenated into one array; caption i is flat[ends[i] : ends[i + 1]].

    They take 4 bytes per token and 8 per caption, and worker processes share them.
    """

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
        """Return the length T of every caption (N,), `<eos>` included."""
        return np.diff(self._ends)

    def pad(self, captions: Sequence[int]) -> Tensor:
        """Return the tokens (B, T) of some captions; shorter ones end with `<pad>`."""
        rows = [torch.from_numpy(self[caption]) for caption in captions]
        return pad_sequence(rows, batch_first=True, padding_value=PAD).long()


class CaptionDataset(TorchDataset[Batch]):
    """All captions of a split as tokens; an item is the `Batch` of the requested captions."""

    def __init__(self, examples: Sequence[Example], vocabulary: Vocabulary, images: ImageSource):
        self.tokens = PackedTokens(
            vocabulary.encode(caption.words, caption.language) for example in examples for caption in example.captions
        )
        self.image_index = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
        self.images, self._held = images, False
        self._names = [example.image for example in examples]

    def hold(self, device: torch.device) -> None:
        """Load the grids of all images into a device's memory, so that none is read again.

        Raises:
            UserError: the images are pixels; the grids exceed the free memory of a GPU.
        """
        if self._held:
            return
        first, number = self.images([0]), len(self._names)
        if first.ndim != 3:
            raise UserError(
                "data.cache_on_device=true keeps the grids of a frozen encoder; leave it out where the encoder is "
                "trained"
            )
        size = number * first.nbytes
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else size
        if size > free:
            raise UserError(
                f"data.cache_on_device=true needs {size / 1e9:.1f} GB for {number:,} grids, and {device} has "
                f"{free / 1e9:.1f} GB left; leave it out, or store fewer bytes with features.dtype=int8"
            )
        grids = torch.empty(number, *first.shape[1:], dtype=first.dtype, device=device)
        for start in range(0, number, 256):
            positions = range(start, min(start + 256, number))
            grids[start : positions.stop] = self.images(positions)
        self.images = lambda positions, draw=(0, 0): grids[torch.as_tensor(positions, device=device)]
        self._held = True

    def __len__(self) -> int:
        return len(self.tokens)

    def name(self, caption: int) -> str:
        """Return the name of a caption, image plus its number among the image's captions from 0: `dog.jpg#4`."""
        image = self.image_index[caption]
        return f"{self._names[image]}#{caption - np.searchsorted(self.image_index, image)}"

    def __getitem__(self, captions: list[int]) -> Batch:
        return self.batch(captions)

    def batch(self, captions: list[int], draw: tuple[int, int] = (0, 0)) -> Batch:
        """Return the captions with their images; `draw` decides the views, see `ImageSource`."""
        # each image once, and for each caption its row among them
        positions, image_index = np.unique(self.image_index[captions], return_inverse=True)
        images = self.images(positions.tolist(), draw)
        return Batch(images, torch.from_numpy(image_index), self.tokens.pad(captions), torch.from_numpy(positions))


class ShardedCaptionDataset(TorchDataset[ShardedBatch[Batch]]):
    """This process's shards of caption batches."""

    def __init__(self, captions: CaptionDataset):
        self._captions = captions

    def __getitem__(self, request: BatchRequest) -> ShardedBatch[Batch]:
        return ShardedBatch(self._captions.batch(request.content, request.draw), request.share)


class ImageBatch(NamedTuple):
    """Images to caption, and the reference captions of each."""

    images: Tensor
    names: list[str]
    references: list[list[tuple[str, ...]]]


class ImageDataset(TorchDataset[ImageBatch]):
    """The images of a split in order, `batch_size` at a time."""

    def __init__(self, examples: Sequence[Example], images: ImageSource, batch_size: int):
        self.examples, self.images, self.batch_size = list(examples), images, batch_size

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def __getitem__(self, index: int) -> ImageBatch:
        if not 0 <= index < len(self):
            raise IndexError(index)
        positions = range(index * self.batch_size, min((index + 1) * self.batch_size, len(self.examples)))
        chosen = [self.examples[position] for position in positions]
        references = [[caption.words for caption in example.captions] for example in chosen]
        return ImageBatch(self.images(list(positions)), [example.image for example in chosen], references)
