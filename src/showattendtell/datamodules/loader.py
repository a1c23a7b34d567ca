"""Loader of batches that reads ahead, and its worker processes."""

import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch.utils.data import DataLoader

from showattendtell.datamodules.samplers import EpochBatchSampler

Item = TypeVar("Item")


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
        yield from batches if self.num_workers else read_ahead(batches, 2)


def read_ahead(items: Iterator[Item], num_ahead: int) -> Iterator[Item]:
    """Yield the same items, with up to `num_ahead` of them requested ahead in a thread."""
    thread = ThreadPoolExecutor(1)
    try:
        futures = deque(thread.submit(next, items, None) for _ in range(num_ahead))
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
