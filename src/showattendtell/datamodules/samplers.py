"""Batch samplers: which captions form a batch, and the order of an epoch's batches; and the loader that reads them
ahead.

N is the number of captions, M the number of batches. M and the caption lengths of each batch are the same in every
epoch, because Lightning counts the batches once; the captions of a batch are drawn at random every epoch.
"""

import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, DistributedSampler

from showattendtell.images.augmentation import Draw
from showattendtell.runtime.distributed import shard, shard_indices, world_size
from showattendtell.types import BatchShard

Ints = NDArray[np.int64]
Item = TypeVar("Item")

WINDOW = 50
"""Batches that `LengthWindows` cuts from one window."""


class BatchingStrategy(ABC):
    """Random arrangement of the captions in every epoch, and the bounds (M, 2) that cut it into batches.

    Batch m has the captions arrangement[bounds[m, 0] : bounds[m, 1]].

    Args:
        lengths: (N,) T of each caption, `<eos>` included.
        image_index: (N,) the image of each caption.
        size: captions in a batch, or fewer.
        group_by_image: keep the captions of an image adjacent if their lengths allow; a full batch still ends, and the
            next one contains the image again.
    """

    bounds: Ints

    @abstractmethod
    def __init__(self, lengths: Ints, image_index: Ints, size: int, group_by_image: bool): ...

    @abstractmethod
    def arrange(self, rng: np.random.Generator) -> Ints:
        """Return the captions (N,) in the order from which the epoch's batches are cut."""

    def order(self, rng: np.random.Generator) -> Ints:
        """Return the batch numbers (M,) in the epoch's order."""
        return rng.permutation(len(self.bounds))


class LengthBuckets(BatchingStrategy):
    """Captions of one length per batch, without padding (Xu et al. 2015, Sec. 4.3).

    Batches come in random order, so that the next length is drawn in proportion to the remaining batches of that length
    (with full batches: to its remaining captions).
    """

    def __init__(self, lengths: Ints, image_index: Ints, size: int, group_by_image: bool):
        self._image_index = image_index if group_by_image else None
        self._groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        self.bounds = _cut(map(len, self._groups), size)

    def arrange(self, rng: np.random.Generator) -> Ints:
        if self._image_index is None:
            return np.concatenate([rng.permutation(group) for group in self._groups])
        arranged = []
        for group in self._groups:
            images, image_index = np.unique(self._image_index[group], return_inverse=True)
            # sorted by a random number of the image; a stable sort keeps the order within an image
            order = np.argsort(rng.permutation(len(images))[image_index], kind="stable")
            arranged.append(group[order])
        return np.concatenate(arranged)


class RoundRobinBuckets(LengthBuckets):
    """Captions of one length; the lengths take turns in a new order every epoch, one batch each, until they are used up
    (as in the paper's released code)."""

    def order(self, rng: np.random.Generator) -> Ints:
        ends = np.cumsum([len(group) for group in self._groups])
        group = np.searchsorted(ends, self.bounds[:, 0], side="right")  # (M,) of each batch
        rounds = np.arange(len(group)) - np.searchsorted(group, group)  # (M,) its number in the group
        position = np.argsort(rng.permutation(len(ends)))  # of each group within a round
        return np.lexsort((position[group], rounds))


class LengthWindows(BatchingStrategy):
    """Captions of nearly equal length, padded to the longest in their batch.

    The units are captions, or with `group_by_image` images with all their captions. Sorted by their longest caption,
    with ties in random order, they are dealt in turn to windows of about `WINDOW` batches. Each window is thus a random
    sample with the length distribution of the data set, and its batches are cut from the longest to the shortest.
    """

    def __init__(self, lengths: Ints, image_index: Ints, size: int, group_by_image: bool):
        unit_of = image_index if group_by_image else np.arange(len(lengths))
        _, units, self._sizes = np.unique(unit_of, return_inverse=True, return_counts=True)
        # unit u has the captions captions[firsts[u] : firsts[u] + sizes[u]]
        self._captions = np.argsort(units, kind="stable")
        self._firsts = np.cumsum(self._sizes) - self._sizes
        longest = np.maximum.reduceat(lengths[self._captions], self._firsts)
        # one number to sort by: first the longest caption, then the number of captions, both decreasing
        self._rank = -longest * (self._sizes.max() + 1) - self._sizes

        # sizes at each rank are the same in every epoch, so the bounds are computed once, from any order
        descending = np.argsort(self._rank, kind="stable")
        num_batches = -(-len(lengths) // size)
        num_windows = min(len(descending), -(-num_batches // WINDOW))
        windows = [np.arange(window, len(descending), num_windows) for window in range(num_windows)]
        self.bounds = _cut([int(self._sizes[descending[window]].sum()) for window in windows], size)
        self._dealt = np.concatenate(windows)

    def arrange(self, rng: np.random.Generator) -> Ints:
        shuffled = rng.permutation(len(self._rank))
        descending = shuffled[np.argsort(self._rank[shuffled], kind="stable")]
        units = descending[self._dealt]
        sizes = self._sizes[units]
        # the ranges firsts[u] : firsts[u] + sizes[u] of all units, one after the other
        skipped = np.repeat(self._firsts[units] - (np.cumsum(sizes) - sizes), sizes)
        return self._captions[skipped + np.arange(len(skipped))]


def _cut(sections: Iterable[int], size: int) -> Ints:
    """Return the bounds (M, 2) of the batches of sections with so many captions, one section after the other. Only the
    last batch of a section may be smaller."""
    bounds, first = [], 0
    for number in sections:
        end = first + number
        bounds += [(start, min(start + size, end)) for start in range(first, end, size)]
        first = end
    return np.array(bounds)


class IndexSampler(DistributedSampler[int]):
    """This process's items in order. Lightning does not replace a sampler of this base class by its own."""

    def __init__(self, indices: range):
        self.indices, self.epoch = indices, 0

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class BatchRequest(NamedTuple):
    """This process's captions of a training batch, see `ShardedBatch`.

    draw  epoch and number of the batch, which decide the random views of its images in every process
    """

    content: list[int]
    shard: BatchShard
    draw: Draw


class EpochBatchSampler(DistributedSampler[Any]):
    """This process's batches of an epoch, which depend on nothing but the seed and the epoch. For the base class see
    `IndexSampler`.

    Every batch is split over all processes, so that all have the same number of steps and similar caption lengths.

    Args:
        min_batches: an epoch passes over the captions as often as needed to have at least this many batches, each time
            in a new order.
        repeated: whether all epochs have the batches of the first one.
    """

    def __init__(self, bucketing: BatchingStrategy, seed: int, min_batches: int = 1, repeated: bool = False):
        self.bucketing, self.seed, self.epoch, self.repeated = bucketing, seed, 0, repeated
        self.passes = -(-min_batches // len(bucketing.bounds))  # rounded up
        self._done: dict[int, int] = {}

    def resume(self, epoch: int, batches: int) -> None:
        """Skip the first batches of that epoch in its next pass."""
        self._done = {epoch: batches}

    @property
    def resumes(self) -> bool:
        """Whether the next pass is the rest of one that began in another process."""
        return self.epoch in self._done

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, even if it is resumed: Lightning continues its own count."""
        return len(self._indices())

    def __iter__(self) -> Iterator[Any]:
        # a generator reads the epoch at its first batch: Lightning calls `set_epoch` after `iter`
        done, self._done = self._done, {}  # also of another epoch, as after a checkpoint that ends one
        yield from self.start_at(done.get(self.epoch, 0))

    def start_at(self, first: int) -> Iterator[Any]:
        """Yield the batches of the epoch without the first ones."""
        rng = np.random.default_rng([self.seed, 0 if self.repeated else self.epoch])
        passes = [(self.bucketing.arrange(rng), self.bucketing.order(rng)) for _ in range(self.passes)]
        for index in self._indices()[first:]:
            pass_index, position = divmod(index, len(self.bucketing.bounds))
            captions, order = passes[pass_index]
            start, stop = self.bucketing.bounds[order[position]]
            yield self._item(captions[start:stop].tolist(), index)

    def _indices(self) -> range:
        """Numbers of the epoch's batches that this process gets."""
        return range(self.passes * len(self.bucketing.bounds))

    def _item(self, captions: list[int], index: int) -> Any:
        shard_captions, num_captions = shard(captions), len(captions)
        # mean over P processes of weight * (sum over own / len(own)) = sum over the batch / whole
        batch_shard = BatchShard(len(shard_captions) * world_size() / num_captions, num_captions)
        return BatchRequest(shard_captions or captions[:1], batch_shard, (self.epoch, index))


class WholeBatchSampler(EpochBatchSampler):
    """Sampler that assigns each batch to one process."""

    def _indices(self) -> range:
        return shard_indices(len(self.bucketing.bounds))

    def _item(self, captions: list[int], index: int) -> list[int]:
        return captions


class PrefetchDataLoader(DataLoader[Item]):
    """DataLoader that prefetches batches in its workers, or in a thread if it has none.

    Reading starts with the request for the first batch, because Lightning calls `set_epoch` after `iter`.

    torch's loader draws a seed for its workers from the random number generator of dropout: at every pass, or once if
    it keeps its workers. This loader draws one at every pass, except for the rest of a pass that began in another
    process, so that neither the number of workers nor an interruption changes the random numbers of training.
    """

    generator: torch.Generator

    def __iter__(self) -> Iterator[Item]:  # type: ignore[override]
        if not (isinstance(self.sampler, EpochBatchSampler) and self.sampler.resumes):
            # as torch's loader draws its seed; with `generator` set, it draws from that one instead
            self.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        batches = super().__iter__()
        yield from batches if self.num_workers else read_ahead(batches)


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items, with up to two of them requested ahead in a thread."""
    thread = ThreadPoolExecutor(1)
    try:
        futures = deque(thread.submit(next, items, None) for _ in range(2))
        while (item := futures.popleft().result()) is not None:
            futures.append(thread.submit(next, items, None))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)


def outlive_signals(worker: int) -> None:
    """Make a worker ignore the signals that a terminal or a scheduler sends to the whole process group.

    The training process ends its workers after the current step. A worker that was asked to terminate ends itself after
    30 seconds.
    """
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(30))
