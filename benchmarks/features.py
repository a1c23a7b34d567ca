"""Feature caches of the sizes of Flickr8k and COCO: time to open, images per second in random batches, and memory.

The features are in the system's page cache, as after a run's first epoch. Each one is read in its own process.
"""

import resource
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.harness.figures import Figure
from benchmarks.harness.memory import in_subprocess
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import seconds_of
from showattendtell.features.store import (
    MANIFEST,
    FeatureStore,
    ShardRecord,
    StorePlan,
    grid_type,
    shard_file,
    shard_header,
)

SIZES = (8_000, 120_000)
ROWS, COLUMNS, REGION_DIM = 14, 14, 512
BATCH_SIZE, BATCHES = 64, 60
CACHED = 4_000
"""Random images of which the batches consist: 800 MB in the page cache."""
REPEATS = 5


class Reading(NamedTuple):
    """Seconds to open, images per second, and memory in MB."""

    opening: float
    rate: float
    memory: float


def make_store(path: Path, images: int, dtype: str) -> None:
    """Write a feature cache of zeros as sparse files, which need no disk space."""
    settings = {"grid": [ROWS, COLUMNS], "dim": REGION_DIM, "dtype": dtype, "views": 1}
    plan = StorePlan("synthetic", settings, [f"{number:012}.jpg" for number in range(images)])
    path.mkdir()
    for number, names in enumerate(plan.shards):
        with shard_file(path, number).open("wb") as file:
            header = file.write(shard_header(settings, len(names)))
            file.truncate(header + len(names) * grid_type(settings).itemsize)
        record = ShardRecord(images=list(names), skipped={}, stamps={})
        shard_file(path, number, ".json").write_text(record.model_dump_json())
    (path / MANIFEST).write_bytes(plan.describe())


def read(path: Path, threads: int) -> Reading:
    torch.set_num_threads(threads)
    before = peak_memory()
    started = time.perf_counter()
    store = FeatureStore(path)
    opening, rng = time.perf_counter() - started, np.random.default_rng(0)
    cached = rng.permutation(len(store))[:CACHED]
    for chosen in np.array_split(cached, CACHED // BATCH_SIZE):
        store[torch.from_numpy(chosen)]

    def read_batches() -> None:
        for _ in range(BATCHES):
            store[torch.from_numpy(rng.choice(cached, BATCH_SIZE))]

    seconds = statistics.median(seconds_of(read_batches) for _ in range(REPEATS))
    return Reading(opening, BATCH_SIZE * BATCHES / seconds, peak_memory() - before)


def peak_memory() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measure(options: Namespace) -> Results:
    readings = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("float16", "int8"):
            for images in SIZES:
                path = Path(folder, f"{dtype}-{images}")
                make_store(path, images, dtype)
                readings[dtype, images] = in_subprocess(read, path, options.threads)
    return Results([], [figure for key in readings for figure in figures(*key, readings[key])])


def figures(dtype: str, images: int, reading: Reading) -> list[Figure]:
    name = f"feature cache, {images:,} images, {dtype}"
    goal = 15_000 if dtype == "float16" else None
    return [
        Figure(f"{name}: reading", reading.rate, "images/s", goal=goal),
        Figure(f"{name}: memory", reading.memory, "MB", "lower"),
        Figure(f"{name}: opening", 1000 * reading.opening, "ms", "lower"),
    ]


if __name__ == "__main__":
    main(measure)
