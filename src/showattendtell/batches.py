"""Batches of captions of one length, and the Lightning data module that deals them out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Literal, NamedTuple

import numpy as np
import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from showattendtell.arguments import NonNegativeInt, PositiveInt
from showattendtell.data.images import ImageFiles, Preprocessing
from showattendtell.features.store import FeatureStore
from showattendtell.processes import own_share
from showattendtell.records import Batch, Dataset, Example
from showattendtell.text.vocabulary import PAD, Vocabulary

ImageSource = Callable[[Sequence[int]], Tensor]
"""Positions within a split to what the model takes: (I, L, D) regions or (I, 3, H, W) pixels."""

LengthOrder = Literal["drawn", "round_robin"]
"""How the lengths of successive batches follow each other, see `LengthBatches`."""


def grid_source(store: FeatureStore, examples: Sequence[Example]) -> ImageSource:
    """Regions from the store."""
    rows = store.rows([example.image for example in examples])
    return lambda positions: store[rows[torch.as_tensor(positions)]]


def pixel_source(preprocessing: Preprocessing, examples: Sequence[Example]) -> ImageSource:
    """Pixels from the image files; reading raises `UserError` for one that is broken."""
    files = ImageFiles([example.path for example in examples], preprocessing)

    def read(positions: Sequence[int]) -> Tensor:
        images = [files[position][1] for position in positions]
        for image in images:
            if isinstance(image, Exception):
                raise image
        return torch.stack(images)  # type: ignore[arg-type]

    return read


class LengthBatches(Sampler[list[int]]):
    """Batches of captions of one length: every caption once an epoch.

    `drawn` puts the batches in random order: the next one's length is thereby drawn in proportion to the captions that
    the epoch still has of it (Xu et al. 2015, Sec. 4.3). `round_robin` visits the lengths in turn, in an order that is
    new every epoch, a batch of each until it is used up (the paper's released code). Both depend on `seed` and the
    epoch alone; Lightning calls `set_epoch`.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, order: LengthOrder = "drawn"):
        self.batch_size, self.seed, self.order, self.epoch = batch_size, seed, order, 0
        by_length = np.asarray(lengths)
        self._groups = [np.flatnonzero(by_length == length) for length in np.unique(by_length)]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(-(-len(group) // self.batch_size) for group in self._groups)

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        by_length = [self._cut(rng.permutation(group)) for group in self._groups]
        if self.order == "round_robin":
            batches = list(_take_turns(by_length[index] for index in rng.permutation(len(by_length))))
        else:
            drawn = list(chain.from_iterable(by_length))
            batches = [drawn[index] for index in rng.permutation(len(drawn))]
        for batch in batches:
            yield batch.tolist()

    def _cut(self, captions: np.ndarray) -> list[np.ndarray]:
        return [captions[start : start + self.batch_size] for start in range(0, len(captions), self.batch_size)]


def _take_turns(piles: Iterable[Sequence[np.ndarray]]) -> Iterator[np.ndarray]:
    """The first of every pile, then the second of those that have one, and so on."""
    return (batch for turn in zip_longest(*piles) for batch in turn if batch is not None)


class CaptionBatches(TorchDataset[Batch]):
    """All captions of a split as tokens; an item is the `Batch` of the captions asked for."""

    def __init__(self, examples: Sequence[Example], vocabulary: Vocabulary, images: ImageSource):
        self.tokens = [vocabulary.encode(caption.words) for example in examples for caption in example.captions]
        self.owners = np.repeat(np.arange(len(examples)), [len(example.captions) for example in examples])
        self.images = images

    @property
    def lengths(self) -> list[int]:
        """T of every caption, `<eos>` included."""
        return [len(tokens) for tokens in self.tokens]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, captions: list[int]) -> Batch:
        positions, owners = np.unique(self.owners[captions], return_inverse=True)
        tokens = [torch.tensor(self.tokens[caption]) for caption in captions]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=PAD)
        return Batch(self.images(positions.tolist()), torch.from_numpy(owners), padded)


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


class CaptionData(lightning.LightningDataModule):
    """Training captions in length batches; for validation the captions (for the loss) and the images (to be captioned).

    Args:
        dataset: the examples; its splits `train` and `val` are used.
        vocabulary: turns words into tokens.
        source: gives the images of a list of examples.
        batch_size: captions a training step.
        generation_batch_size: images captioned at a time.
        num_workers: processes that read images; 0 where the grids are in a store.
        order: of the training batches: drawn, a random one of any length; or round_robin, one of each length in turn.
    """

    def __init__(
        self,
        dataset: Dataset,
        vocabulary: Vocabulary,
        source: Callable[[Sequence[Example]], ImageSource],
        batch_size: PositiveInt,
        seed: int,
        generation_batch_size: PositiveInt = 100,
        num_workers: NonNegativeInt = 0,
        order: LengthOrder = "drawn",
    ):
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # there may be fewer batches than processes
        self.batch_size, self.seed, self.num_workers, self.order = batch_size, seed, num_workers, order
        train, val = dataset.split("train"), dataset.split("val")
        self.train_captions = CaptionBatches(train, vocabulary, source(train))
        self.val_captions = CaptionBatches(val, vocabulary, source(val))
        self.val_images = ImageBatches(val, source(val), generation_batch_size)

    def train_dataloader(self) -> DataLoader[Batch]:
        captions = LengthBatches(self.train_captions.lengths, self.batch_size, self.seed, self.order)
        return self._loader(self.train_captions, captions)

    def val_dataloader(self) -> list[DataLoader]:
        captions = LengthBatches(self.val_captions.lengths, self.batch_size, self.seed)
        return [
            self._loader(self.val_captions, captions),
            self._loader(self.val_images, own_share(len(self.val_images))),
        ]

    def _loader(self, items: TorchDataset, sampler: LengthBatches | range) -> DataLoader:
        """`batch_size=None`: the sampler deals whole batches, and Lightning finds its `set_epoch` there."""
        context = "fork" if self.num_workers else None
        return DataLoader(
            items,
            batch_size=None,
            sampler=sampler,
            num_workers=self.num_workers,
            multiprocessing_context=context,
            persistent_workers=bool(self.num_workers),
        )
