"""Opening a data set in Karpathy's JSON with five captions an image, at the sizes of Flickr8k, Flickr30k and COCO."""

import json
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
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


def main() -> None:
    """Each size in a process of its own, since a process never tells a lower peak again."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        make_images(folder, max(SIZES))
        opened = [open_apart(folder, write_captions(folder, size)) for size in SIZES]
    print_table(opened)


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


def write_captions(folder: Path, number: int) -> Path:
    """8 to 13 of 9,000 words a caption, common ones more often (Zipf), with all fields that Karpathy's file has."""
    draw = random.Random(0)
    words = [f"word{rank}" for rank in range(VOCABULARY_SIZE)]
    frequencies = list(accumulate(1 / rank for rank in range(1, VOCABULARY_SIZE + 1)))

    def sentence(index: int) -> dict[str, Any]:
        tokens = draw.choices(words, cum_weights=frequencies, k=draw.randint(8, 13))
        return {"tokens": tokens, "raw": f"{' '.join(tokens).capitalize()}.", "imgid": index // 5, "sentid": index}

    images = [
        {
            **describe_place(index),
            "split": ("val", "test", *["restval"] * 6, *["train"] * 17)[index % 25],
            "sentids": list(range(5 * index, 5 * index + 5)),
            "sentences": [sentence(number) for number in range(5 * index, 5 * index + 5)],
            "imgid": index,
            "cocoid": index,
        }
        for index in range(number)
    ]
    path = folder / f"dataset_{number}.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    return path


def open_apart(folder: Path, captions: Path) -> Opened:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(open_data_set, folder, captions).result()


def open_data_set(folder: Path, captions: Path) -> Opened:
    before = memory("VmRSS")
    started = time.perf_counter()
    dataset = read_coco(str(folder), captions=captions.name)
    seconds = time.perf_counter() - started
    examples = dataset.examples()
    num_captions = sum(len(example.captions) for example in examples)
    return Opened(len(examples), num_captions, seconds, memory("VmHWM") - before, memory("VmRSS") - before)


def memory(kind: str) -> float:
    """MB of this process, as Linux tells it: `VmRSS` now, `VmHWM` at its highest."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind)]
    return int(line.split()[1]) / 1024


def print_table(opened: list[Opened]) -> None:
    table = Table(title="opening a data set in Karpathy's JSON, all images on disk", title_justify="left")
    for column in ("images", "captions", "seconds", "µs a caption", "peak MB", "kept MB"):
        table.add_column(column, justify="right")
    for images, captions, seconds, peak, kept in opened:
        each = f"{1e6 * seconds / captions:.1f}"
        table.add_row(f"{images:,}", f"{captions:,}", f"{seconds:.2f}", each, f"{peak:.0f}", f"{kept:.0f}")
    table.caption = describe_machine()
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
