"""An epoch's batches planned: time and memory by the number of captions, and what each bucketing saves or wastes."""

import time
import tracemalloc
from argparse import Namespace
from typing import NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from showattendtell.datamodules.samplers import (
    BatchingStrategy,
    BatchSize,
    Ints,
    LengthBuckets,
    LengthWindows,
    RoundRobinBuckets,
    WholeBatchSampler,
)

SIZES = (40_000, 160_000, 600_000)
"""Captions; COCO has 616,000."""
CAPTIONS_PER_IMAGE, BATCH_SIZE = 5, 64


class Way(NamedTuple):
    """Its name, and what it makes."""

    settings: str
    kind: type[BatchingStrategy]
    group_by_image: bool


WAYS = [
    Way("paper", LengthBuckets, False),
    Way("paper, images together", LengthBuckets, True),
    Way("round_robin", RoundRobinBuckets, False),
    Way("padded", LengthWindows, False),
    Way("padded, images together", LengthWindows, True),
]


def draw_lengths(number: int) -> Ints:
    """Lengths as those of Flickr8k's captions are: mean 11.8, standard deviation 3.9, `<eos>` included."""
    return 3 + np.rint(np.random.default_rng(0).gamma(5, 1.75, number)).astype(np.int64)


class Planned(NamedTuple):
    """Seconds to set up and for an epoch, MB at the most, how many batches, grids a caption, and padding in %."""

    set_up: float
    epoch: float
    peak: float
    batches: int
    grids: float
    padding: float


def measure(options: Namespace) -> Measured:
    planned = {}
    for number in SIZES:
        lengths, image_index = draw_lengths(number), np.arange(number) // CAPTIONS_PER_IMAGE
        for way in WAYS:
            planned[number, way.settings] = plan(way, lengths, image_index)
    largest = [(way.settings, planned[max(SIZES), way.settings]) for way in WAYS]
    return Measured([make_table(planned)], [figure for found in largest for figure in figures(*found)])


def plan(way: Way, lengths: Ints, image_index: Ints) -> Planned:
    started = time.perf_counter()
    batches = WholeBatchSampler(way.kind(lengths, image_index, BatchSize(BATCH_SIZE), way.group_by_image), 0)
    set_up = time.perf_counter()
    epoch = list(batches)
    planned = time.perf_counter()
    grids = sum(len(np.unique(image_index[batch])) for batch in epoch) / len(lengths)
    padding = sum(len(batch) * lengths[batch].max() for batch in epoch) / lengths.sum() - 1
    peak = peak_memory(way, lengths, image_index)
    return Planned(set_up - started, planned - set_up, peak, len(epoch), grids, 100 * padding)


def figures(settings: str, planned: Planned) -> list[Figure]:
    """Of the largest number of captions."""
    name = f"{max(SIZES):,}, {settings}"
    return [
        Figure(f"{name}: peak memory", planned.peak, "MB", "lower"),
        Figure(f"{name}: grids a caption", planned.grids, "times", "lower"),
        Figure(f"{name}: padding", planned.padding, "%", "lower"),
        Figure(f"{name}: an epoch", 1000 * planned.epoch, "ms", "lower"),
    ]


def make_table(planned: dict[tuple[int, str], Planned]) -> Table:
    title = f"an epoch in batches of {BATCH_SIZE}, by data.bucketing and data.group_by_image"
    table = Table("captions", title=title, title_justify="left")
    table.add_column("batches are", no_wrap=True)
    for column in ("set up, ms", "epoch, ms", "peak MB", "batches", "grids a caption", "padding, %"):
        table.add_column(column, justify="right")
    for (number, settings), (set_up, epoch, peak, batches, grids, padding) in planned.items():
        milliseconds = [f"{1000 * seconds:.0f}" for seconds in (set_up, epoch)]
        table.add_row(
            f"{number:,}", settings, *milliseconds, f"{peak:.0f}", f"{batches:,}", f"{grids:.2f}", f"{padding:.1f}"
        )
    return table


def peak_memory(way: Way, lengths: Ints, image_index: Ints) -> float:
    """MB at the most while a sampler is set up and dealt from, beyond the lengths and image_index themselves."""
    tracemalloc.start()
    for _ in WholeBatchSampler(way.kind(lengths, image_index, BatchSize(BATCH_SIZE), way.group_by_image), 0):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


if __name__ == "__main__":
    main(measure)
