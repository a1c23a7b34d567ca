"""An epoch's batches planned: time and memory by the number of captions, and what each bucketing saves or wastes."""

import time
import tracemalloc
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from showattendtell.bucketing import BatchSize, Bucketing, EpochBatches, Ints, LengthBuckets, RoundRobin, Windows
from showattendtell.processes import own_share

SIZES = (40_000, 160_000, 600_000)
"""Captions; COCO has 616,000."""
CAPTIONS_PER_IMAGE, BATCH_SIZE = 5, 64


class Way(NamedTuple):
    """What is set in the node `data`, and what that makes."""

    settings: str
    kind: type[Bucketing]
    images_together: bool


WAYS = [
    Way("bucketing=paper", LengthBuckets, False),
    Way("bucketing=paper images_together=true", LengthBuckets, True),
    Way("bucketing=round_robin", RoundRobin, False),
    Way("bucketing=padded", Windows, False),
    Way("bucketing=padded images_together=true", Windows, True),
]


def draw_lengths(number: int) -> Ints:
    """Lengths as those of Flickr8k's captions are: mean 11.8, standard deviation 3.9, `<eos>` included."""
    return 3 + np.rint(np.random.default_rng(0).gamma(5, 1.75, number)).astype(np.int64)


def main() -> None:
    table = Table("captions", "data", title="the batches of an epoch", title_justify="left")
    for column in ("set up, s", "an epoch, s", "peak MB", "batches", "grids a caption", "padding, %"):
        table.add_column(column, justify="right")
    for number in SIZES:
        lengths, owners = draw_lengths(number), np.arange(number) // CAPTIONS_PER_IMAGE
        for way in WAYS:
            table.add_row(f"{number:,}", way.settings, *measure(way, lengths, owners))
    table.caption = f"{describe_machine()}; {BATCH_SIZE} captions a batch"
    Console(highlight=False, width=130).print(table)


def measure(way: Way, lengths: Ints, owners: Ints) -> list[str]:
    started = time.perf_counter()
    batches = EpochBatches(way.kind(lengths, owners, BatchSize(BATCH_SIZE), way.images_together), 0, own_share)
    set_up = time.perf_counter()
    epoch = list(batches)
    planned = time.perf_counter()
    grids = sum(len(np.unique(owners[batch])) for batch in epoch) / len(lengths)
    padding = sum(len(batch) * lengths[batch].max() for batch in epoch) / lengths.sum() - 1
    figures = [f"{set_up - started:.2f}", f"{planned - set_up:.2f}", f"{peak_memory(way, lengths, owners):.0f}"]
    return [*figures, f"{len(epoch):,}", f"{grids:.2f}", f"{100 * padding:.1f}"]


def peak_memory(way: Way, lengths: Ints, owners: Ints) -> float:
    """MB at the most while a sampler is set up and dealt from, beyond the lengths and owners themselves."""
    tracemalloc.start()
    for _ in EpochBatches(way.kind(lengths, owners, BatchSize(BATCH_SIZE), way.images_together), 0, own_share):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


if __name__ == "__main__":
    main()
