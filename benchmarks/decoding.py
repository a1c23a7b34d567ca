"""From JPEG files to the encoder's square of pixels: which way is fastest, and how far it is from Pillow's."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image, ImageFilter
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from benchmarks.machine import describe_machine
from showattendtell.data.images import Preprocessing, image_size, read_pixels

PHOTOGRAPHS = "SHOWATTENDTELL_PHOTOGRAPHS"
"""The environment variable that names a folder of JPEGs to decode instead of drawn ones."""

IMAGES, WIDTH, HEIGHT, REPEATS = 30, 500, 375, 7
PREPROCESSING = Preprocessing(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

Way = Callable[[Path], Tensor]


def draw_photograph(rng: np.random.Generator) -> Image.Image:
    """Smooth shapes of all sizes under a little noise, which JPEG packs about as well as a photograph."""
    picture = np.zeros((HEIGHT, WIDTH, 3))
    for cells in (3, 6, 12, 25, 50, 100):
        coarse = Image.fromarray(rng.integers(0, 256, size=(cells, cells, 3), dtype=np.uint8))
        picture += np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / cells
    levels = 255 * (picture - picture.min()) / np.ptp(picture) + rng.normal(0, 4, picture.shape)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8)).filter(ImageFilter.SMOOTH)


def find_photographs(folder: Path) -> list[Path]:
    """JPEGs of the folder that the environment names, or ones that are drawn now."""
    if PHOTOGRAPHS in os.environ:
        return sorted(Path(os.environ[PHOTOGRAPHS]).glob("*.jpg"))[:IMAGES]
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        draw_photograph(rng).save(folder / f"{number}.jpg", quality=90)
    return sorted(folder.iterdir())


def pillow(path: Path) -> Tensor:
    """Decoded, resized and cut out by Pillow."""
    with Image.open(path) as image:
        resized = transforms.resize(image.convert("RGB"), [PREPROCESSING.resize], InterpolationMode.BICUBIC)
    return transforms.pil_to_tensor(transforms.center_crop(resized, [PREPROCESSING.crop]))


def pillow_float(path: Path) -> Tensor:
    """And normalised, as the usual dataset class does."""
    return PREPROCESSING.normalise(pillow(path))


def pillow_draft(path: Path) -> Tensor:
    """Decoded at 1/2, 1/4 or 1/8 of its size where that is enough."""
    with Image.open(path) as image:
        image.draft("RGB", (PREPROCESSING.resize, PREPROCESSING.resize))
        return PREPROCESSING(image.convert("RGB"))


def pillow_then_torchvision(path: Path) -> Tensor:
    with Image.open(path) as image:
        return PREPROCESSING(image.convert("RGB"))


def ours(path: Path) -> Tensor:
    """Header by Pillow, the rest by torchvision."""
    return PREPROCESSING(read_pixels(path))


def ours_float(path: Path) -> Tensor:
    """And normalised; training does that a batch at a time, on the GPU if there is one."""
    return PREPROCESSING.normalise(ours(path))


WAYS: dict[str, Way] = {
    "Pillow, float": pillow_float,
    "Pillow": pillow,
    "Pillow, torchvision's resize": pillow_then_torchvision,
    "Pillow's draft mode": pillow_draft,
    "ours": ours,
    "ours, float": ours_float,
}


def measure(photographs: list[Path]) -> dict[str, float]:
    """Seconds an image: of each image the quickest time, which other work on the machine disturbs least."""
    quickest = {name: [float("inf")] * len(photographs) for name in WAYS}
    for _ in range(REPEATS):
        for number, path in enumerate(photographs):
            for name, way in WAYS.items():
                started = time.perf_counter()
                way(path)
                quickest[name][number] = min(quickest[name][number], time.perf_counter() - started)
    return {name: statistics.mean(times) for name, times in quickest.items()}


def distance(way: Way, photographs: list[Path]) -> float:
    """Mean |difference| to Pillow's pixels, in levels of 255."""
    return float(np.mean([(way(path).float() - pillow(path).float()).abs().mean().item() for path in photographs]))


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        photographs = find_photographs(Path(folder))
        seconds = measure(photographs)
        distances = {name: distance(way, photographs) for name, way in WAYS.items() if "float" not in name}
        sizes = [image_size(str(path)) for path in photographs]
    torch.set_num_threads(threads)
    print_table(seconds, distances, f"{len(sizes)} JPEGs, most of {statistics.mode(sizes)} pixels")


def print_table(seconds: dict[str, float], distances: dict[str, float], photographs: str) -> None:
    table = Table("", title=f"{photographs}, shortest side to 256, 224 x 224 of it", title_justify="left")
    for column in ("images a second", "times the first", "levels from Pillow"):
        table.add_column(column, justify="right")
    usual, *_ = seconds.values()
    for name, needed in seconds.items():
        far = f"{distances[name]:.3f}" if name in distances else ""
        table.add_row(name, f"{1 / needed:.0f}", f"{usual / needed:.2f}", far)
    table.caption = f"{describe_machine(threads=1)}; quickest of {REPEATS}"
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
