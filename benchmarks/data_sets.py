"""Opening a data set in Karpathy's JSON with five captions an image, at the sizes of Flickr8k, Flickr30k and COCO.

Each size is opened in a process of its own. `a doubling` is what the seconds are multiplied by where the images double,
as from the row above: 2 is growth in proportion.
"""

import json
import time
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.memory import apart, can_measure, memory
from benchmarks.frame.script import CannotRunError, Measured, main
from benchmarks.frame.timing import PROPORTION, a_doubling
from showattendtell.data.coco import read_coco

SIZES = (8_000, 30_000, 120_000)
VOCABULARY_SIZE = 9000
FOLDERS = ("train2014", "val2014")


class Opened(NamedTuple):
    """Images, captions, seconds, and by how many MB memory grew: at its highest, and with the data set open."""

    images: int
    captions: int
    seconds: float
    peak: float
    kept: float


def measure(options: Namespace) -> Measured:
    if not can_measure():
        raise CannotRunError("memory is counted by Linux's /proc")
    with TemporaryDirectory() as place:
        folder = Path(place)
        make_images(folder, max(SIZES))
        images = describe_images(max(SIZES))
        opened = [apart(open_data_set, folder, write_captions(folder, images[:size])) for size in SIZES]
    factor = a_doubling([row.images for row in opened], [row.seconds for row in opened])
    last = opened[-1]
    return Measured(
        [make_table(opened)],
        [
            Figure("images of a data set doubled: time to open it", factor, better="lower", goal=PROPORTION),
            Figure("120,000 images: peak memory", last.peak, "MB", "lower"),
            Figure("120,000 images: memory that is kept", last.kept, "MB", "lower"),
            Figure("120,000 images: opening", last.seconds, "s", "lower"),
        ],
    )


def make_images(folder: Path, number: int) -> None:
    """Empty files: opening a data set reads no image."""
    for name in FOLDERS:
        (folder / name).mkdir()
    for index in range(number):
        entry = describe_place(index)
        (folder / entry["filepath"] / entry["filename"]).touch()


def describe_place(index: int) -> dict[str, Any]:
    folder = FOLDERS[index % 3 == 0]
    return {"filepath": folder, "filename": f"COCO_{folder}_{index:012d}.jpg"}


def describe_images(number: int) -> list[dict[str, Any]]:
    """All fields that Karpathy's file has; 8 to 13 of 9,000 words a caption, common ones more often (Zipf)."""
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
            **describe_place(index),
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


def open_data_set(folder: Path, captions: Path) -> Opened:
    before = memory("VmRSS")
    started = time.perf_counter()
    dataset = read_coco(str(folder), captions=captions.name)
    seconds = time.perf_counter() - started
    examples = dataset.examples()
    num_captions = sum(len(example.captions) for example in examples)
    return Opened(len(examples), num_captions, seconds, memory("VmHWM") - before, memory("VmRSS") - before)


def make_table(opened: list[Opened]) -> Table:
    table = Table(title="opening a data set in Karpathy's JSON, all images on disk", title_justify="left")
    for column in ("images", "captions", "seconds", "a doubling", "µs a caption", "peak MB", "kept MB"):
        table.add_column(column, justify="right")
    for before, row in zip([None, *opened], opened, strict=False):
        images, captions, seconds, peak, kept = row
        factor = f"x {a_doubling((before.images, images), (before.seconds, seconds)):.2f}" if before else ""
        each = f"{1e6 * seconds / captions:.1f}"
        table.add_row(f"{images:,}", f"{captions:,}", f"{seconds:.2f}", factor, each, f"{peak:.0f}", f"{kept:.0f}")
    return table


if __name__ == "__main__":
    main(measure)
