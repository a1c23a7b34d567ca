"""Which captions make a batch, and in which order an epoch's batches come.

N is the number of captions, M that of batches. How many batches there are, and how long the captions of each, is the
same in every epoch, for Lightning counts the batches once; who is in a batch is drawn anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from showattendtell.processes import own_part, own_share, world_size
from showattendtell.records import Part, Share

Ints = NDArray[np.int64]
Item = TypeVar("Item")

WINDOW = 50
"""Batches that `Windows` cuts from one window."""


class BatchSize(NamedTuple):
    """How large a batch may be: so many captions, or with `tokens` so many words, `<eos>` and padding included."""

    captions: int
    tokens: int | None = None

    def fit(self, longest: int) -> int:
        """How many captions fit in when they are padded to `longest` words; one always does."""
        return self.captions if self.tokens is None else max(1, self.tokens // longest)


class Bucketing(ABC):
    """Captions arranged anew for every epoch, and the bounds (M, 2) at which the batches are cut from them.

    Args:
        lengths: (N,) T of each caption, `<eos>` included.
        owners: (N,) the image of each caption.
        size: how large a batch may be.
        images_together: whether the captions of an image follow each other wherever their lengths allow; a batch still
            ends where it is full, and the next one has the image again.
    """

    bounds: Ints

    @abstractmethod
    def __init__(self, lengths: Ints, owners: Ints, size: BatchSize, images_together: bool): ...

    @abstractmethod
    def arrange(self, rng: np.random.Generator) -> Ints:
        """(N,) the captions as an epoch's batches are cut from them."""

    def order(self, rng: np.random.Generator) -> Ints:
        """(M,) the batches in the order in which an epoch has them."""
        return rng.permutation(len(self.bounds))


class LengthBuckets(Bucketing):
    """Captions of one length, no padding (Xu et al. 2015, Sec. 4.3).

    The batches come in random order: the next one's length is thereby drawn in proportion to the batches that the epoch
    still has of it, which where they are full is in proportion to its captions.
    """

    def __init__(self, lengths: Ints, owners: Ints, size: BatchSize, images_together: bool):
        self._owners = owners if images_together else None
        self._groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        cuts = [list(_cut(lengths[group], size)) for group in self._groups]
        firsts = np.cumsum([0, *map(len, self._groups)])
        self._group = np.repeat(np.arange(len(cuts)), [len(cut) for cut in cuts])  # (M,)
        self._turn = np.concatenate([np.arange(len(cut)) for cut in cuts])  # (M,)
        self.bounds = np.concatenate(cuts) + firsts[self._group, np.newaxis]

    def arrange(self, rng: np.random.Generator) -> Ints:
        return np.concatenate([self._shuffled(group, rng) for group in self._groups])

    def _shuffled(self, group: Ints, rng: np.random.Generator) -> Ints:
        if self._owners is None:
            return rng.permutation(group)
        images, owners = np.unique(self._owners[group], return_inverse=True)
        return group[np.argsort(rng.permutation(len(images))[owners], kind="stable")]


class RoundRobin(LengthBuckets):
    """Captions of one length; the lengths take turns, in an order that is new every epoch, a batch of each until it is
    used up (the paper's released code)."""

    def order(self, rng: np.random.Generator) -> Ints:
        place = np.argsort(rng.permutation(len(self._groups)))
        return np.lexsort((place[self._group], self._turn))


class Windows(Bucketing):
    """Captions of nearly equal length, padded to the longest of their batch.

    The captions, or with `images_together` the images by their longest caption, are dealt in turn to windows of about
    `WINDOW` batches, the longest first and equal ones in random order. Each window is thus a random sample with the
    data set's own lengths, and its batches are cut from the longest to the shortest.
    """

    def __init__(self, lengths: Ints, owners: Ints, size: BatchSize, images_together: bool):
        together = owners if images_together else np.arange(len(lengths))
        _, units, self._sizes = np.unique(together, return_inverse=True, return_counts=True)
        self._captions = np.argsort(units, kind="stable")  # unit by unit
        self._firsts = np.cumsum(self._sizes) - self._sizes
        longest = np.maximum.reduceat(lengths[self._captions], self._firsts)
        self._rank = -longest * (self._sizes.max() + 1) - self._sizes

        falling = np.argsort(self._rank, kind="stable")
        num_batches = len(list(_cut(self._padded(longest, falling), size)))
        num_windows = min(len(falling), -(-num_batches // WINDOW))
        windows = [np.arange(window, len(falling), num_windows) for window in range(num_windows)]
        cuts = [np.array(list(_cut(self._padded(longest, falling[window]), size))) for window in windows]
        ends = [cut[-1, 1] for cut in cuts]
        self.bounds = np.concatenate([cut + end for cut, end in zip(cuts, np.cumsum([0, *ends]), strict=False)])
        self._dealt = np.concatenate(windows)

    def _padded(self, longest: Ints, units: Ints) -> Ints:
        """The length to which each caption of the units would be padded if its unit's were the longest."""
        return np.repeat(longest[units], self._sizes[units])

    def arrange(self, rng: np.random.Generator) -> Ints:
        shuffled = rng.permutation(len(self._rank))
        falling = shuffled[np.argsort(self._rank[shuffled], kind="stable")]
        units = falling[self._dealt]
        sizes = self._sizes[units]
        skipped = np.repeat(self._firsts[units] - (np.cumsum(sizes) - sizes), sizes)
        return self._captions[skipped + np.arange(len(skipped))]


def _cut(lengths: Ints, size: BatchSize) -> Iterator[tuple[int, int]]:
    """The bounds of batches as large as they may be, of captions whose lengths do not rise."""
    start = 0
    while start < len(lengths):
        stop = min(start + size.fit(int(lengths[start])), len(lengths))
        yield start, stop
        start = stop


class EpochBatches(Sampler[Item], ABC):
    """What this process has of an epoch's batches; they depend on the seed and the epoch alone."""

    def __init__(self, bucketing: Bucketing, seed: int):
        self.bucketing, self.seed, self.epoch = bucketing, seed, 0
        self._done: dict[int, int] = {}

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before each epoch."""
        self.epoch = epoch

    def resume(self, epoch: int, batches: int) -> None:
        """Leave the first batches of that epoch out when it is dealt next."""
        self._done = {epoch: batches}

    @property
    def resumes(self) -> bool:
        """Whether the pass that comes is the rest of one that was begun in another process."""
        return self.epoch in self._done

    def __len__(self) -> int:
        """A whole epoch's batches, also where it is resumed: Lightning counts on from those that it has had."""
        return len(self._numbers())

    def __iter__(self) -> Iterator[Item]:
        yield from self._from(self._done.pop(self.epoch, 0))

    def item(self, number: int) -> Item:
        """One of the epoch's, counted from 0."""
        return next(self._from(number))

    def _from(self, first: int) -> Iterator[Item]:
        rng = np.random.default_rng([self.seed, self.epoch])
        captions = self.bucketing.arrange(rng)
        bounds = self.bucketing.bounds[self.bucketing.order(rng)]
        for number in self._numbers()[first:]:
            start, stop = bounds[number]
            yield self._item(captions[start:stop].tolist())

    @abstractmethod
    def _numbers(self) -> range:
        """Of the epoch's batches, which are dealt here."""

    @abstractmethod
    def _item(self, captions: list[int]) -> Item: ...


class WholeBatches(EpochBatches[list[int]]):
    """Every batch is some process's."""

    def _numbers(self) -> range:
        return own_share(len(self.bucketing.bounds))

    def _item(self, captions: list[int]) -> list[int]:
        return captions


class SharedBatches(EpochBatches[Part[list[int]]]):
    """Every process has its part of every batch, so that all have as many steps, and of captions of like length."""

    def _numbers(self) -> range:
        return range(len(self.bucketing.bounds))

    def _item(self, captions: list[int]) -> Part[list[int]]:
        own, whole = own_part(captions), len(captions)
        return Part(own or captions[:1], Share(len(own) * world_size() / whole, whole))
