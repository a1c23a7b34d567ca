"""Opening data sets in Karpathy's JSON with five captions per image, at the sizes of Flickr8k, Flickr30k and COCO.

Each size is opened in its own process.
"""

import json
import time
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.figures import Figure
from benchmarks.harness.memory import can_measure, in_subprocess, memory
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import PROPORTIONAL, growth_factor
from showattendtell.data.coco import read_coco

SIZES = (8_000, 30_000, 120_000)
VOCABULARY_SIZE = 9000
FOLDERS = ("train2014", "val2014")


class Opened(NamedTuple):
    """Seconds, and the growth of memory in MB: the peak, and with the data set open."""

    seconds: float
    peak: float
    open: float


def measure(options: Namespace) -> Results:
    if not can_measure():
        raise CannotRunError("measuring memory needs Linux's /proc")
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, max(SIZES))
        entries = describe_images(max(SIZES))
        opened = [in_subprocess(open_data_set, folder, write_captions(folder, entries[:size]), size) for size in SIZES]
    growth = growth_factor(SIZES, [row.seconds for row in opened])
    figures = [Figure("opening time with twice the images", growth, better="lower", goal=PROPORTIONAL)]
    for images, (seconds, peak, memory_open) in zip(SIZES, opened, strict=True):
        figures += [
            Figure(f"{images:,} images: opening", seconds, "s", "lower"),
            Figure(f"{images:,} images: peak memory", peak, "MB", "lower"),
            Figure(f"{images:,} images: memory of the open data set", memory_open, "MB", "lower"),
        ]
    return Results([], figures)


def make_images(folder: Path, number: int) -> None:
    """Write empty files, because opening a data set reads no image."""
    for name in FOLDERS:
        (folder / name).mkdir()
    for index in range(number):
        entry = file_of(index)
        (folder / entry["filepath"] / entry["filename"]).touch()


def file_of(index: int) -> dict[str, Any]:
    folder = FOLDERS[index % 3 == 0]
    return {"filepath": folder, "filename": f"COCO_{folder}_{index:012d}.jpg"}


def describe_images(number: int) -> list[dict[str, Any]]:
    """Return all fields of Karpathy's format, with captions of 8 to 13 words whose frequencies follow Zipf's law."""
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, VOCABULARY_SIZE + 1)
    lengths = rng.integers(8, 14, 5 * number)
    ranks = rng.choice(VOCABULARY_SIZE, lengths.sum(), p=frequencies / frequencies.sum())
    ends = lengths.cumsum()

    def sentence(index: int) -> dict[str, Any]:
        tokens = [f"word{rank}" for rank in ranks[ends[index] - lengths[index] : ends[index]]]
        return {"tokens": tokens, "raw": f"{' '.join(tokens).capitalize()}.", "imgid": index // 5, "sentid": index}

    return [
        {
            **file_of(index),
            "split": ("val", "test", *["restval"] * 6, *["train"] * 17)[index % 25],
            "sentids": list(range(5 * index, 5 * index + 5)),
            "sentences": [sentence(caption) for caption in range(5 * index, 5 * index + 5)],
            "imgid": index,
            "cocoid": index,
        }
        for index in range(number)
    ]


def write_captions(folder: Path, images: list[dict[str, Any]]) -> Path:
    path = folder / f"dataset_{len(images)}.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    return path


def open_data_set(folder: Path, captions: Path, images: int) -> Opened:
    before = memory("VmRSS")
    started = time.perf_counter()
    dataset = read_coco(str(folder), captions=captions.name)
    seconds = time.perf_counter() - started
    assert len(dataset.examples()) == images
    return Opened(seconds, memory("VmHWM") - before, memory("VmRSS") - before)


if __name__ == "__main__":
    main(measure)
