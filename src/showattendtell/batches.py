"""The Lightning data module, which deals out captions and images in batches."""

import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, TypeVar

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from showattendtell.arguments import NonNegativeInt, PositiveInt
from showattendtell.bucketing import (
    BatchSize,
    Bucketing,
    EpochBatches,
    LengthBuckets,
    RoundRobin,
    SharedBatches,
    WholeBatches,
    Windows,
)
from showattendtell.errors import UserError
from showattendtell.processes import own_share, world_size
from showattendtell.records import Batch, Dataset, Part
from showattendtell.splits import CaptionBatches, CaptionParts, ImageBatches, Source
from showattendtell.text.vocabulary import Vocabulary

Item = TypeVar("Item")

BucketingName = Literal["paper", "round_robin", "padded"]

BUCKETINGS: dict[BucketingName, type[Bucketing]] = {
    "paper": LengthBuckets,
    "round_robin": RoundRobin,
    "padded": Windows,
}

READ_AHEAD = 2
"""Batches that are read while the present one is used."""


class EagerLoader(DataLoader[Item]):
    """Reads the next batches while the present one is used: in its workers, or in a thread where it has none.

    Nothing is read before the first batch is asked for: Lightning calls `set_epoch` after `iter`.

    torch's loader takes a seed for its workers from the random numbers that dropout takes from as well: every pass, or
    once a run if it keeps its workers. This one takes it at every pass, and for the rest of a pass that was begun in
    another process none, so that neither workers nor an interruption change what is drawn.
    """

    generator: torch.Generator

    def __iter__(self) -> Iterator[Item]:  # type: ignore[override]
        if not (isinstance(self.sampler, EpochBatches) and self.sampler.resumes):
            self.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        batches = super().__iter__()
        yield from batches if self.num_workers else read_ahead(batches, READ_AHEAD)


def read_ahead(items: Iterator[Item], number: int) -> Iterator[Item]:
    """The same items, up to `number` of them asked for in a thread before they are needed."""
    thread = ThreadPoolExecutor(1)
    try:
        coming = deque(thread.submit(next, items, None) for _ in range(number))
        while (item := coming.popleft().result()) is not None:
            coming.append(thread.submit(next, items, None))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)


LAST_WISHES = 30
"""Seconds that a worker goes on when it is told to stop."""


def outlive_signals(worker: int) -> None:
    """Let a worker read on when a terminal or a scheduler stops the whole group of processes: the one that trains ends
    it, after the step that it is in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(LAST_WISHES))


class CaptionData(lightning.LightningDataModule):
    """Training captions in batches; for validation the captions (for the loss) and the images (to be captioned).

    A checkpoint that is written in mid-epoch knows which batches have been trained on, and training goes on with those
    that are left. Where several processes train, a batch is as many times as large and each has its part of it: the
    epoch is that of one process with such batches. In validation each batch is some process's.

    Args:
        dataset: the examples; its splits `train` and `val` are used.
        vocabulary: turns words into tokens.
        source: gives the images of a list of examples.
        batch_size: captions a training step, of each process.
        generation_batch_size: images captioned at a time.
        num_workers: processes that read images; 0 where the grids are in a store.
        bucketing: what a training batch is: paper, captions of one length, which is drawn at random; round_robin, the
            same with the lengths in turn; padded, captions of nearly one length.
        images_together: keep an image's captions in one batch, so that its grid is read and projected once: those that
            have one length, or with bucketing=padded all.
        tokens_per_batch: words of a training batch, padding included, of each process, instead of a number of captions.
        resident: keep the grids of all training images in the memory of the device that trains; they are read once.
    """

    def __init__(
        self,
        dataset: Dataset,
        vocabulary: Vocabulary,
        source: Source,
        batch_size: PositiveInt,
        seed: int,
        generation_batch_size: PositiveInt = 100,
        num_workers: NonNegativeInt = 0,
        bucketing: BucketingName = "paper",
        images_together: bool = False,
        tokens_per_batch: PositiveInt | None = None,
        resident: bool = False,
    ):
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # there may be fewer batches than processes
        self.num_workers, self.resident = num_workers, resident
        train, val = dataset.split("train"), dataset.split("val")
        self.train_captions = CaptionBatches(train, vocabulary, source(train, "drawn"))
        self.val_captions = CaptionBatches(val, vocabulary, source(val))
        self.val_images = ImageBatches(val, source(val), generation_batch_size)

        self._seed, self._images_together = seed, images_together
        self._kind, self._size = BUCKETINGS[bucketing], BatchSize(batch_size, tokens_per_batch)

    @cached_property
    def train_batches(self) -> SharedBatches:
        """Known as soon as the number of processes is."""
        processes = world_size()
        size = BatchSize(processes * self._size.captions, self._size.tokens and processes * self._size.tokens)
        return SharedBatches(self._bucketed(self.train_captions, self._kind, size), self._seed)

    @cached_property
    def val_batches(self) -> WholeBatches:
        size = BatchSize(self._size.captions)
        return WholeBatches(self._bucketed(self.val_captions, LengthBuckets, size), self._seed)

    def _bucketed(self, captions: CaptionBatches, kind: type[Bucketing], size: BatchSize) -> Bucketing:
        return kind(captions.tokens.lengths, captions.owners, size, self._images_together)

    def train_dataloader(self) -> DataLoader[Part[Batch]]:
        if self.resident:
            assert self.trainer is not None
            self.train_captions.hold(self.trainer.strategy.root_device)
        return self._loader(CaptionParts(self.train_captions), self.train_batches)

    def val_dataloader(self) -> list[DataLoader]:
        """Lightning leaves a process out of validation that has no batch; it writes what another one writes, too."""
        images = own_share(len(self.val_images)) or range(1)
        return [self._loader(self.val_captions, self.val_batches), self._loader(self.val_images, images)]

    def _loader(self, items: TorchDataset, sampler: EpochBatches | range) -> DataLoader:
        """`batch_size=None`: the sampler deals whole batches, and Lightning finds its `set_epoch` there."""
        context = "fork" if self.num_workers else None
        return EagerLoader(
            items,
            batch_size=None,
            sampler=sampler,
            num_workers=self.num_workers,
            multiprocessing_context=context,
            persistent_workers=bool(self.num_workers),
            pin_memory=items is not self.val_images and torch.cuda.is_available() and not self.resident,
            generator=torch.Generator(),
            worker_init_fn=outlive_signals if self.num_workers else None,
        )

    def name_batch(self, number: int) -> list[str]:
        """This process's captions of one of the present epoch's batches to train on."""
        return [self.train_captions.name(caption) for caption in self.train_batches.item(number).content]

    def state_dict(self) -> dict[str, Any]:
        """How far training is: the epoch, how many of its batches have been trained on, and how many it has."""
        assert self.trainer is not None
        trained = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]
        return {"epoch": self.train_batches.epoch, "batches": trained, "of": len(self.train_batches)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass over the state's epoch begin behind the batches that it has had.

        Raises `UserError` where that epoch cannot be finished since this run cuts its batches otherwise.
        """
        if state["batches"] < state["of"] != len(self.train_batches):
            raise UserError(
                f"the checkpoint has had {state['batches']} of its epoch's {state['of']} batches, and this run's "
                f"epochs have {len(self.train_batches)}; go on with the data, batch size and number of processes it had"
            )
        self.train_batches.resume(state["epoch"], state["batches"])
