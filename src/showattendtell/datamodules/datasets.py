"""Captions and images of a split in batches, and image sources. Sizes are those of `showattendtell.types`."""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset as TorchDataset

from showattendtell.datamodules.samplers import BatchRequest
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction, feature_path, open_features
from showattendtell.features.store import FeatureStore
from showattendtell.images.augmentation import MIRRORED, Augmentation, Draw, draw_views, mentions_sides
from showattendtell.images.reading import Frame, Preprocessing, image_size, read_pixels
from showattendtell.metrics.attention import boxes_on_grid, covered_areas
from showattendtell.models.encoder import Encoder
from showattendtell.readers.assembly import drop_unreadable
from showattendtell.runtime.distributed import num_readers, rank
from showattendtell.text.vocabulary import PAD, Vocabulary
from showattendtell.types import AttentionTargets, Batch, Caption, Dataset, Example, ShardedBatch


class ImageSource(Protocol):
    """Function from positions in a split to model inputs: regions (I, L, D) or pixels (I, 3, H, W)."""

    def __call__(self, positions: Sequence[int], draw: Draw | None = None) -> Tensor:
        """Return the images.

        Args:
            draw: epoch and number of the training batch; with the seed they decide which view of an image is drawn.
                None: the images as validation sees them.
        """

    def frames(self, positions: Sequence[int], draw: Draw | None = None) -> list[Frame]:
        """Return the part of each photograph that the image of the same call shows."""


ImageSourceFactory = Callable[[Sequence[Example]], ImageSource]
"""Function of the examples of a split that returns their images. An image has the position of its example."""


class GridSource:
    """Source of regions from the feature store.

    Args:
        preprocessing: of the encoder.
        seed: decides which stored view of an image is drawn.
    """

    def __init__(self, store: FeatureStore, examples: Sequence[Example], preprocessing: Preprocessing, seed: int = 0):
        self._store, self._examples, self._preprocessing, self._seed = store, examples, preprocessing, seed
        self._rows = store.rows([example.image for example in examples])
        self.draws_views = store.views > 1

    def __call__(self, positions: Sequence[int], draw: Draw | None = None) -> Tensor:
        return self._store.read(self._rows[list(positions)], self._views(positions, draw))

    def frames(self, positions: Sequence[int], draw: Draw | None = None) -> list[Frame]:
        """Return the part of each photograph that the grid of the same call shows."""
        views = self._views(positions, draw).tolist()
        frames = [self._preprocessing.frame(self._examples[position].path) for position in positions]
        return [frame._replace(mirrored=view == MIRRORED) for frame, view in zip(frames, views, strict=True)]

    def _views(self, positions: Sequence[int], draw: Draw | None) -> Tensor:
        if draw is None or not self.draws_views:
            return torch.zeros(len(positions), dtype=torch.long)
        return draw_views(self._mentions_sides, self._seed, draw)[list(positions)]

    @cached_property
    def _mentions_sides(self) -> NDArray:
        return np.array(list(map(mentions_sides, self._examples)))


class PixelSource:
    """Source of uint8 pixels from image files.

    Args:
        augmentation: changes the images of training batches. Epoch and number of the batch seed it: the images depend
            neither on the process nor on earlier reads.

    Raises:
        UserError: from its methods, for an image file that cannot be read.
    """

    def __init__(
        self, preprocessing: Preprocessing, examples: Sequence[Example], augmentation: Augmentation | None = None
    ):
        self._preprocessing, self._examples = preprocessing, examples
        self._augmentation = augmentation or Augmentation(seed=0)

    def __call__(self, positions: Sequence[int], draw: Draw | None = None) -> Tensor:
        images = []
        for position in positions:
            pixels = read_pixels(self._examples[position].path)
            if draw is None:
                images.append(self._preprocessing(pixels))
            else:
                images.append(self._augmentation.view(pixels, self._preprocessing, *self._random(position, draw)))
        return torch.stack(images)

    def frames(self, positions: Sequence[int], draw: Draw | None = None) -> list[Frame]:
        """Return the part of each photograph that its pixels show."""
        if draw is None:
            return [self._preprocessing.frame(self._examples[position].path) for position in positions]
        frames = []
        for position in positions:
            width, height = image_size(self._examples[position].path)
            part, mirrored = self._augmentation.draw_part(height, width, *self._random(position, draw))
            box = part or self._preprocessing.crop_box(width, height)
            frames.append(Frame(box.scaled(1 / width, 1 / height), mirrored))
        return frames

    def _random(self, position: int, draw: Draw) -> tuple[np.random.Generator, bool]:
        """Return the random numbers of an image, and whether its captions distinguish left from right."""
        rng = np.random.default_rng([self._augmentation.seed, *draw, position])
        return rng, mentions_sides(self._examples[position])


@dataclass(frozen=True)
class EncoderImages:
    """The images that an encoder, or the model after a frozen one, reads: an `ImageSourceFactory`.

    Attributes:
        preprocessing: of the encoder.
        augmentation: changes pixels; its seed decides which stored views are drawn.
        store: the grids of a frozen encoder; None to read pixels.
    """

    preprocessing: Preprocessing
    augmentation: Augmentation
    store: FeatureStore | None

    def __call__(self, examples: Sequence[Example]) -> ImageSource:
        if self.store is None:
            return PixelSource(self.preprocessing, examples, self.augmentation)
        return GridSource(self.store, examples, self.preprocessing, self.augmentation.seed)


def open_source(
    dataset: Dataset,
    encoder: Encoder,
    folder: Path,
    extraction: Extraction,
    augmentation: Augmentation,
    skip_unreadable: bool,
    evaluated: str | None = None,
) -> tuple[EncoderImages, Dataset]:
    """Return the images as the encoder reads them, and the data set without unreadable images.

    Grids of a frozen encoder are computed once and read from the feature store. A trainable encoder reads pixels.

    Args:
        folder: parent folder of all feature stores.
        augmentation: changes the training images of a trainable encoder; its seed decides which stored views are drawn.
        skip_unreadable: leave out images that cannot be read, instead of raising `UserError`.
        evaluated: the split that a trained model reads: if there is no store, read the pixels of this split instead of
            computing all grids.

    Raises:
        UserError: augmentation with a frozen encoder; an unreadable image; a store with other settings.
    """
    if augmentation and not encoder.trainable:
        raise UserError(
            "augment changes the photographs that a trained encoder sees; set encoder.trainable=true, or store "
            "features.views=2"
        )
    store = None
    if not encoder.trainable:
        path = feature_path(folder, dataset, encoder, extraction)
        store, dataset = open_features(dataset, encoder, path, skip_unreadable, extraction, compute=evaluated is None)
    if store is None and skip_unreadable:
        dataset = drop_unreadable(dataset, [evaluated] if evaluated else [*dataset.splits])
    return EncoderImages(encoder.preprocessing, augmentation, store), dataset


class PackedRows:
    """N rows of numbers in one array, which worker processes share, in 4 bytes per number and 16 per row.

    Args:
        code: type of the numbers, as of `array`.

    Attributes:
        lengths: (N,) number of each row's numbers, of captions T.
    """

    def __init__(self, rows: Iterable[Iterable[float]], code: Literal["i", "f"] = "i"):
        flat: Any = array(code)
        ends = [0]
        for row in rows:
            flat.extend(row)
            ends.append(len(flat))
        # row i is flat[ends[i] : ends[i + 1]]
        self.flat, self.ends = np.frombuffer(flat, dtype=code), np.array(ends)
        self.lengths = np.diff(self.ends)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> NDArray:
        return self.flat[self.ends[row] : self.ends[row + 1]]

    def pad(self, rows: Sequence[int]) -> Tensor:
        """Return the tokens (B, T) of some captions; shorter ones end with `<pad>`.

        A step on a GPU takes 2 ms, so the captions are not copied one by one.
        """
        starts, lengths = self.ends[np.asarray(rows)], self.lengths[np.asarray(rows)]
        steps = np.arange(lengths.max())
        is_word = steps < lengths[:, np.newaxis]  # (B, T)
        tokens = np.full(is_word.shape, PAD)
        tokens[is_word] = self.flat[(starts[:, np.newaxis] + steps)[is_word]]
        return torch.from_numpy(tokens)


class TargetMaker:
    """Computes the `AttentionTargets` of a batch.

    Args:
        captions: the captions of the split.
        frames: `ImageSource.frames` of the images of the split.
        grid: rows and columns.
    """

    def __init__(self, captions: Iterable[Caption], frames: Callable[..., list[Frame]], grid: tuple[int, int]):
        phrases = [caption.phrases for caption in captions]
        self.frames, self.grid = frames, grid
        # the words of each caption that have boxes, and the boxes of each of these words
        self.words = PackedRows([phrase.noun for phrase in row] for row in phrases)
        self.boxes = PackedRows((chain(*phrase.boxes) for row in phrases for phrase in row), "f")

    def __call__(self, batch: Batch, captions: Sequence[int], draw: Draw | None) -> AttentionTargets:
        """Return the targets of a batch of these captions."""
        rows, columns = self.grid
        steps, frames = batch.tokens.shape[1], self.frames(batch.positions.tolist(), draw)
        indices, grid_boxes, mirrored = [], [], []
        for row, (caption, image) in enumerate(zip(captions, batch.image_index.tolist(), strict=True)):
            seen, is_mirrored = frames[image]
            for number, word in enumerate(self.words[caption], start=self.words.ends[caption]):
                indices.append(row * steps + int(word))
                boxes = self.boxes[number].reshape(-1, 4)
                grid_boxes.append(torch.from_numpy(boxes_on_grid(boxes, seen, rows, columns)))
                mirrored.append(is_mirrored)
        padded = pad_sequence(grid_boxes, batch_first=True).numpy() if indices else np.zeros((0, 0, 4))
        areas = covered_areas(padded, rows, columns)  # empty boxes cover nothing
        areas[mirrored] = areas[mirrored][:, :, ::-1]
        areas = areas.reshape(len(indices), rows * columns)
        totals = areas.sum(axis=1)
        visible = totals > 0  # all boxes of other words lie outside of the frame
        masses = (areas[visible] / totals[visible, np.newaxis]).astype(np.float32)
        return AttentionTargets(torch.from_numpy(np.array(indices, dtype=np.int64)[visible]), torch.from_numpy(masses))


def default_workers(images: Callable[..., Tensor], device: torch.device) -> int:
    """Return how many processes read the images for a model on a device: several that decode photographs for a GPU."""
    return num_readers() if device.type == "cuda" and isinstance(images, PixelSource) else 0


def check_cache(cache_on_device: bool | None, num_workers: int | None, views: int) -> None:
    """Raise `UserError` if grids in the memory of a device would be read by worker processes, which forked processes
    cannot do, or are of several views."""
    if cache_on_device and num_workers:
        raise UserError(
            f"data.cache_on_device=true needs no worker processes, got data.num_workers={num_workers}; set "
            "data.num_workers=0, or leave data.cache_on_device out"
        )
    if cache_on_device and views > 1:
        raise UserError("data.cache_on_device=true keeps one view of each image; leave it out with features.views")


class CaptionDataset(TorchDataset[Any]):
    """All captions of a split as tokens; an item is the `Batch` of the requested captions, or its `ShardedBatch` if a
    `BatchRequest` of training asks for them."""

    def __init__(self, examples: Sequence[Example], vocabulary: Vocabulary, images: Callable[..., Tensor]):
        captions = chain.from_iterable(example.captions for example in examples)
        self.tokens = PackedRows(vocabulary.encode(caption.words) for caption in captions)
        self.image_index = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
        self.images, self.is_cached = images, False
        self.targets: TargetMaker | None = None  # of batches, if the loss reads them
        self._num_images = len(examples)

    def cache_on(self, device: torch.device, half: torch.dtype | None = None, required: bool = True) -> None:
        """Load the grids of all images into a device's memory, so that none is read again.

        Args:
            half: the dtype in half precision that grids in another one are converted to.
            required: false: load them only if there is one per image and they take at most half of the free memory.

        Raises:
            UserError: they are required, and the images are pixels, or the grids exceed the free memory of a GPU.
        """
        if self.is_cached:
            return
        first, num_images = self.images([0]), self._num_images
        size, is_grid = num_images * first.nbytes, first.ndim == 3
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
        if not required and (not is_grid or size > free / 2 or getattr(self.images, "draws_views", False)):
            return
        if not is_grid or size > free:
            raise UserError(
                f"data.cache_on_device=true keeps grids of a frozen encoder, {size / 1e9:.1f} GB, and {device} has "
                f"{free / 1e9:.1f} GB left; leave it out, or store fewer bytes with features.dtype=int8"
            )
        dtype = half if half and first.dtype == torch.float16 else first.dtype
        grids = torch.empty(num_images, *first.shape[1:], dtype=dtype, device=device)
        for positions in torch.arange(num_images).split(256):
            grids[positions] = self.images(positions.tolist()).to(grids)

        def read(positions: Sequence[int], draw: Draw | None = None) -> Tensor:
            # from pinned memory: other copies wait for the training steps that the GPU has yet to compute
            index = torch.tensor(positions, pin_memory=device.type == "cuda")
            return grids[index.to(device, non_blocking=True)]

        self.images, self.is_cached = read, True
        if device.type == "cuda" and rank() == 0:
            stored = f"grids of {num_images:,} images in GPU memory: {grids.nbytes / 1e9:.1f} GB"
            print(f"{stored}; data.cache_on_device=false reads them batch by batch")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, request: list[int] | BatchRequest) -> Any:
        if isinstance(request, BatchRequest):
            return ShardedBatch(self.batch(request.content, request.draw), request.shard)
        return self.batch(request)

    def batch(self, captions: list[int], draw: Draw | None = None) -> Batch:
        """Return the captions with their images; `draw` decides the views, see `ImageSource`."""
        # each image once, and for each caption its row among them
        positions, image_index = np.unique(self.image_index[captions], return_inverse=True)
        images, tokens = self.images(positions.tolist(), draw), self.tokens.pad(captions)
        batch = Batch(images, torch.from_numpy(image_index), tokens, torch.from_numpy(positions))
        return batch._replace(targets=self.targets(batch, captions, draw)) if self.targets else batch


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
        start = range(0, len(self.examples), self.batch_size)[index]
        examples = self.examples[start : start + self.batch_size]
        references = [[caption.words for caption in example.captions] for example in examples]
        images = self.images(range(start, start + len(examples)))
        return ImageBatch(images, [example.image for example in examples], references)
