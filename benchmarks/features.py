"""Stores of Flickr8k's and of COCO's size: opening them, random batches, and the memory that it takes.

The grids are in the system's cache, as they are from a run's second epoch on. Each store is read in a process of its
own.
"""

import resource
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from showattendtell.features.store import (
    FeatureStore,
    ShardRecord,
    StorePlan,
    record_file,
    shard_bytes,
    shard_file,
    shard_header,
    write_json,
)
from showattendtell.features.writer import seal

SIZES = (8_000, 120_000)
ROWS, COLUMNS, REGION_DIM = 14, 14, 512
BATCH_SIZE, BATCHES = 64, 60
WARM = 4_000
"""Images, anywhere in the store, of which the batches are: 800 MB that are in the system's cache."""
REPEATS = 5


class Reading(NamedTuple):
    """Seconds to open, images a second, and megabytes of memory: before anything is opened, and most of all."""

    opening: float
    rate: float
    before: float
    most: float


def make_store(path: Path, images: int, dtype: str) -> None:
    """A store as `write_store` leaves it, but that all numbers are 0: they are holes in its files, which take no room
    on the disk, and in the system's cache as much as others."""
    settings = {"grid": [ROWS, COLUMNS], "dim": REGION_DIM, "dtype": dtype, "views": 1}
    plan = StorePlan("synthetic", settings, [f"{number:012}.jpg" for number in range(images)])
    records = []
    path.mkdir()
    for number, names in enumerate(plan.shards):
        with shard_file(path, number).open("wb") as file:
            file.write(shard_header(settings, len(names)))
            file.truncate(shard_bytes(settings, len(names)))
        record = ShardRecord(images=list(names), skipped={}, checksums=[0] * (len(names) // 32), lost=0, whole=0)
        write_json(record_file(path, number), record)
        records.append(record)
    seal(path, plan.dataset, settings, records)


def read(path: Path, threads: int) -> Reading:
    """In a process of its own, since memory is counted over all its life."""
    torch.set_num_threads(threads)
    before = resident()
    started = time.perf_counter()
    store = FeatureStore(path)
    opening = time.perf_counter() - started
    rng = np.random.default_rng(0)
    warm = rng.permutation(len(store))[:WARM]
    for chosen in np.array_split(warm, WARM // BATCH_SIZE):
        store[torch.from_numpy(chosen)]
    return Reading(opening, statistics.median(rate(store, warm, rng) for _ in range(REPEATS)), before, resident())


def rate(store: FeatureStore, warm: np.ndarray, rng: np.random.Generator) -> float:
    """Images a second."""
    started = time.perf_counter()
    for _ in range(BATCHES):
        store[torch.from_numpy(rng.choice(warm, BATCH_SIZE))]
    return BATCH_SIZE * BATCHES / (time.perf_counter() - started)


def resident() -> float:
    """The most memory that the process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measure(options: Namespace) -> Measured:
    readings = {}
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for dtype in ("float16", "int8"):
            for images in SIZES:
                path = Path(folder, f"{dtype}-{images}")
                make_store(path, images, dtype)
                readings[dtype, images] = pool.apply(read, (path, options.threads))
    return Measured([make_table(readings)], [figure for key in readings for figure in figures(*key, readings[key])])


def figures(dtype: str, images: int, reading: Reading) -> list[Figure]:
    store = f"store of {images:,}, {dtype}"
    goal = 15_000 if dtype == "float16" else None
    return [
        Figure(f"{store}: reading, warm", reading.rate, "images/s", goal=goal),
        Figure(f"{store}: its memory", reading.most - reading.before, "MB", "lower"),
        Figure(f"{store}: opening", 1000 * reading.opening, "ms", "lower"),
    ]


def make_table(readings: dict[tuple[str, int], Reading]) -> Table:
    title = f"grids of {ROWS * COLUMNS} x {REGION_DIM} in the system's cache, batches of {BATCH_SIZE} at random"
    table = Table(title=title, title_justify="left")
    for column in ("images", "numbers", "opening, ms", "images a second", "memory, MB", "of that the store, MB"):
        table.add_column(column, justify="right")
    for (dtype, images), (opening, fetched, before, most) in readings.items():
        numbers = [1000 * opening, fetched, most, most - before]
        table.add_row(f"{images:,}", dtype, *(f"{number:,.0f}" for number in numbers))
    return table


if __name__ == "__main__":
    main(measure)
