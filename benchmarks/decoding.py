"""From JPEG files to the encoder's square of pixels: which way is fastest, and how far its pixels are from Pillow's.

The photographs are drawn by code, unless a folder of JPEGs is named. Ways take turns, each with all photographs.
"""

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageFilter
from rich.table import Table
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import CannotRunError, Measured, main
from benchmarks.frame.timing import interleave, medians
from showattendtell.data.images import Preprocessing, image_size, read_pixels

IMAGES, WIDTH, HEIGHT = 20, 500, 375
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


def draw_photographs(folder: Path) -> list[Path]:
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


USUAL, OURS = "Pillow and torchvision, float", "ours"
WAYS: dict[str, Way] = {
    USUAL: pillow_float,
    "Pillow and torchvision": pillow,
    "Pillow, torchvision resizes": pillow_then_torchvision,
    "Pillow's draft mode": pillow_draft,
    OURS: ours,
    "ours, float": ours_float,
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--photographs", default="", metavar="DIR", help=f"take {IMAGES} of its JPEGs (*.jpg)")


def measure(options: Namespace) -> Measured:
    with TemporaryDirectory() as folder:
        photographs = find_photographs(options.photographs) or draw_photographs(Path(folder))
        seconds = time_ways(photographs)
        levels = {name: distance(way, photographs) for name, way in WAYS.items() if "float" not in name}
        size = statistics.mode(image_size(str(path)) for path in photographs)
    figures = [
        Figure("JPEGs: speed / Pillow and torchvision's", seconds[USUAL] / seconds[OURS], goal=2.7),
        Figure("JPEGs: distance from Pillow's pixels", levels[OURS], "levels", "lower", goal=0.05),
        *(Figure(name, 1 / needed, "images/s") for name, needed in seconds.items()),
    ]
    return Measured([make_table(seconds, levels, f"{len(photographs)} JPEGs, most of {size} pixels")], figures)


def find_photographs(folder: str) -> list[Path]:
    if not folder:
        return []
    found = sorted(Path(folder).glob("*.jpg"))[:IMAGES]
    if not found:
        raise CannotRunError(f"{folder} has no file *.jpg")
    return found


def time_ways(photographs: Sequence[Path]) -> dict[str, float]:
    """Seconds an image."""

    def take_all(way: Way) -> Callable[[], object]:
        return lambda: [way(path) for path in photographs]

    taken = medians(interleave({name: take_all(way) for name, way in WAYS.items()}, seconds=6))
    return {name: seconds / len(photographs) for name, seconds in taken.items()}


def distance(way: Way, photographs: Sequence[Path]) -> float:
    """Mean |difference| to Pillow's pixels, in levels of 255."""
    return float(np.mean([(way(path).float() - pillow(path).float()).abs().mean().item() for path in photographs]))


def make_table(seconds: dict[str, float], levels: dict[str, float], photographs: str) -> Table:
    table = Table("", title=f"{photographs}, shortest side to 256, 224 x 224 of it", title_justify="left")
    for column in ("images a second", "times the first", "levels from Pillow"):
        table.add_column(column, justify="right")
    for name, needed in seconds.items():
        far = f"{levels[name]:.3f}" if name in levels else ""
        table.add_row(name, f"{1 / needed:.0f}", f"{seconds[USUAL] / needed:.2f}", far)
    return table


if __name__ == "__main__":
    main(measure, more_options=add_options)
