"""Composition of an epoch's batches: time and memory by number of captions, features read, and padding."""

import time
import tracemalloc
from argparse import Namespace
from typing import NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from showattendtell.datamodules.samplers import (
    BatchingStrategy,
    Ints,
    LengthBuckets,
    LengthWindows,
    RoundRobinBuckets,
    WholeBatchSampler,
)

SIZES = (40_000, 160_000, 600_000)
"""Numbers of captions; COCO has 616,000."""
CAPTIONS_PER_IMAGE, BATCH_SIZE = 5, 64


class Strategy(NamedTuple):
    """A value of `data.bucketing`, with or without `data.group_by_image`."""

    name: str
    kind: type[BatchingStrategy]
    group_by_image: bool


STRATEGIES = [
    Strategy("paper", LengthBuckets, False),
    Strategy("paper, grouped by image", LengthBuckets, True),
    Strategy("round_robin", RoundRobinBuckets, False),
    Strategy("padded", LengthWindows, False),
    Strategy("padded, grouped by image", LengthWindows, True),
]


def draw_lengths(number: int) -> Ints:
    """Return caption lengths as in Flickr8k, with `<eos>`: mean 11.8, standard deviation 3.9."""
    return 3 + np.rint(np.random.default_rng(0).gamma(5, 1.75, number)).astype(np.int64)


class Epoch(NamedTuple):
    """Seconds to set up and to iterate, peak memory in MB, batches, images read per caption, and padding in %."""

    set_up: float
    seconds: float
    peak: float
    batches: int
    images: float
    padding: float


def measure(options: Namespace) -> Results:
    epochs = {}
    for number in SIZES:
        lengths, image_index = draw_lengths(number), np.arange(number) // CAPTIONS_PER_IMAGE
        for strategy in STRATEGIES:
            epochs[number, strategy.name] = compose(strategy, lengths, image_index)
    largest = [(strategy.name, epochs[max(SIZES), strategy.name]) for strategy in STRATEGIES]
    return Results([make_table(epochs)], [figure for found in largest for figure in figures(*found)])


def make_sampler(strategy: Strategy, lengths: Ints, image_index: Ints) -> WholeBatchSampler:
    batching = strategy.kind(lengths, image_index, BATCH_SIZE, strategy.group_by_image)
    return WholeBatchSampler(batching, 0)


def compose(strategy: Strategy, lengths: Ints, image_index: Ints) -> Epoch:
    started = time.perf_counter()
    sampler = make_sampler(strategy, lengths, image_index)
    ready = time.perf_counter()
    batches = list(sampler)
    ended = time.perf_counter()
    images = sum(len(np.unique(image_index[batch])) for batch in batches) / len(lengths)
    padding = sum(len(batch) * lengths[batch].max() for batch in batches) / lengths.sum() - 1
    peak = peak_memory(strategy, lengths, image_index)
    return Epoch(ready - started, ended - ready, peak, len(batches), images, 100 * padding)


def figures(strategy: str, epoch: Epoch) -> list[Figure]:
    """Return the figures of the largest number of captions."""
    name = f"{max(SIZES):,} captions, {strategy}"
    return [
        Figure(f"{name}: peak memory", epoch.peak, "MB", "lower"),
        Figure(f"{name}: images read per caption", epoch.images, "times", "lower"),
        Figure(f"{name}: padding", epoch.padding, "%", "lower"),
        Figure(f"{name}: epoch", 1000 * epoch.seconds, "ms", "lower"),
    ]


def make_table(epochs: dict[tuple[int, str], Epoch]) -> Table:
    title = f"an epoch in batches of {BATCH_SIZE}, by data.bucketing and data.group_by_image"
    table = Table("captions", title=title, title_justify="left")
    table.add_column("strategy", no_wrap=True)
    for column in ("set up, ms", "epoch, ms", "peak MB", "batches", "images per caption", "padding, %"):
        table.add_column(column, justify="right")
    for (number, name), (set_up, seconds, peak, batches, images, padding) in epochs.items():
        cells = [f"{1000 * set_up:.0f}", f"{1000 * seconds:.0f}", f"{peak:.0f}", f"{batches:,}", f"{images:.2f}"]
        table.add_row(f"{number:,}", name, *cells, f"{padding:.1f}")
    return table


def peak_memory(strategy: Strategy, lengths: Ints, image_index: Ints) -> float:
    """Return the peak memory in MB of a sampler and its epoch, without its arguments."""
    tracemalloc.start()
    for _ in make_sampler(strategy, lengths, image_index):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


if __name__ == "__main__":
    main(measure)
