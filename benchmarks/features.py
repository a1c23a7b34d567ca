"""Stores of Flickr8k's and of COCO's size: opening them, random batches, and the memory that it takes."""

import resource
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from showattendtell.features.layout import ShardRecord, record_file, shard_bytes, shard_file, shard_header, write_whole
from showattendtell.features.plan import Plan
from showattendtell.features.store import FeatureStore
from showattendtell.features.writer import seal

SIZES = (8_000, 120_000)
ROWS, COLUMNS, REGION_DIM = 14, 14, 512
BATCH_SIZE, BATCHES = 64, 100
WARM = 4_000
"""Images, anywhere in the store, of which the batches are: 800 MB that are in the system's cache."""
REPEATS = 5


class Measured(NamedTuple):
    """Seconds to open, images a second, and megabytes of memory: before anything is opened, and most of all."""

    opening: float
    rate: float
    before: float
    most: float


def make_store(path: Path, images: int, dtype: str) -> None:
    """A store as `write_store` leaves it, but that all numbers are 0: they are holes in its files, which take no room
    on the disk, and in the system's cache as much as others."""
    settings = {"grid": [ROWS, COLUMNS], "dim": REGION_DIM, "dtype": dtype, "views": 1}
    plan = Plan("synthetic", settings, [f"{number:012}.jpg" for number in range(images)])
    records = []
    path.mkdir()
    for number, names in enumerate(plan.shards):
        with shard_file(path, number).open("wb") as file:
            file.write(shard_header(settings, len(names)))
            file.truncate(shard_bytes(settings, len(names)))
        record = ShardRecord(images=list(names), skipped={}, checksums=[0] * (len(names) // 32), lost=0, whole=0)
        write_whole(record_file(path, number), record)
        records.append(record)
    seal(path, plan.dataset, settings, records)


def measure(path: Path) -> Measured:
    """In a process of its own, since memory is counted over all its life."""
    torch.set_num_threads(1)
    before = resident()
    started = time.perf_counter()
    store = FeatureStore(path)
    opening = time.perf_counter() - started
    rng = np.random.default_rng(0)
    warm = rng.permutation(len(store))[:WARM]
    for chosen in np.array_split(warm, WARM // BATCH_SIZE):
        store[torch.from_numpy(chosen)]
    return Measured(opening, statistics.median(rate(store, warm, rng) for _ in range(REPEATS)), before, resident())


def rate(store: FeatureStore, warm: np.ndarray, rng: np.random.Generator) -> float:
    """Images a second."""
    started = time.perf_counter()
    for _ in range(BATCHES):
        store[torch.from_numpy(rng.choice(warm, BATCH_SIZE))]
    return BATCH_SIZE * BATCHES / (time.perf_counter() - started)


def resident() -> float:
    """The most memory that the process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    table = Table(
        title=f"grids of {ROWS * COLUMNS} x {REGION_DIM} in the system's cache, batches of {BATCH_SIZE} at random",
        title_justify="left",
    )
    for column in ("images", "numbers", "opening, ms", "images a second", "memory, MB", "of that the store, MB"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for dtype in ("float16", "int8"):
            for images in SIZES:
                path = Path(folder, f"{dtype}-{images}")
                make_store(path, images, dtype)
                measured = pool.apply(measure, (path,))
                figures = [1000 * measured.opening, measured.rate, measured.most, measured.most - measured.before]
                table.add_row(f"{images:,}", dtype, *(f"{figure:,.0f}" for figure in figures))
    table.caption = describe_machine(threads=1)
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
