"""Decoding JPEG files, resized to 256 and cropped to 224 pixels: images per second and difference from Pillow's pixels.

Photographs are generated, unless `--photographs` is given. Variants take turns, each with all photographs.
"""

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import interleave, medians
from showattendtell.images.reading import Preprocessing, image_size, read_pixels

IMAGES, WIDTH, HEIGHT = 20, 500, 375
PREPROCESSING = Preprocessing(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def draw_photograph(rng: np.random.Generator) -> Image.Image:
    """Draw smooth shapes of all sizes with noise, which JPEG compresses about as well as a photograph."""
    picture = np.zeros((HEIGHT, WIDTH, 3))
    for cells in (3, 6, 12, 25, 50, 100):
        coarse = Image.fromarray(rng.integers(0, 256, size=(cells, cells, 3), dtype=np.uint8))
        picture += np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)) / cells
    levels = 255 * (picture - picture.min()) / np.ptp(picture) + rng.normal(0, 4, picture.shape)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8)).filter(ImageFilter.SMOOTH)


def draw_photographs(folder: Path, number: int) -> list[Path]:
    rng = np.random.default_rng(0)
    for index in range(number):
        draw_photograph(rng).save(folder / f"{index}.jpg", quality=90)
    return sorted(folder.glob("*.jpg"))


def pillow(path: Path) -> Tensor:
    """Decode, resize and crop with Pillow."""
    with Image.open(path) as image:
        resized = transforms.resize(image.convert("RGB"), [PREPROCESSING.resize], InterpolationMode.BICUBIC)
    return transforms.pil_to_tensor(transforms.center_crop(resized, [PREPROCESSING.crop]))


def pillow_float(path: Path) -> Tensor:
    """Also normalize, as a typical dataset class does."""
    return PREPROCESSING.normalize(pillow(path))


def pillow_draft(path: Path) -> Tensor:
    """Decode at 1/2, 1/4 or 1/8 of the size if that is large enough."""
    with Image.open(path) as image:
        image.draft("RGB", (PREPROCESSING.resize, PREPROCESSING.resize))
        return PREPROCESSING(image.convert("RGB"))


def pillow_then_torchvision(path: Path) -> Tensor:
    with Image.open(path) as image:
        return PREPROCESSING(image.convert("RGB"))


def ours(path: Path) -> Tensor:
    """Read the header with Pillow, and do the rest with torchvision."""
    return PREPROCESSING(read_pixels(path))


def ours_float(path: Path) -> Tensor:
    """Also normalize; training does so for whole batches, on the GPU if there is one."""
    return PREPROCESSING.normalize(ours(path))


BASELINE, OURS = "Pillow and torchvision, float", "ours"
VARIANTS: dict[str, Callable[[Path], Tensor]] = {
    BASELINE: pillow_float,
    "Pillow and torchvision": pillow,
    "Pillow, torchvision resizes": pillow_then_torchvision,
    "Pillow's draft mode": pillow_draft,
    OURS: ours,
    "ours, float": ours_float,
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--photographs", default="", metavar="DIR", help=f"use {IMAGES} JPEGs (*.jpg) of this folder")


def measure(options: Namespace) -> Results:
    with TemporaryDirectory() as folder:
        photographs = find_photographs(options.photographs) or draw_photographs(Path(folder), IMAGES)
        seconds = time_variants(photographs)
        levels = {name: difference(read, photographs) for name, read in VARIANTS.items() if "float" not in name}
        size = statistics.mode(image_size(str(path)) for path in photographs)
    figures = [Figure("JPEGs: speed-up over Pillow and torchvision", seconds[BASELINE] / seconds[OURS], goal=2.7)]
    figures += [Figure(name, 1 / needed, "images/s") for name, needed in seconds.items()]
    for name, value in levels.items():
        goal = 0.05 if name == OURS else None
        figures.append(Figure(f"{name}: difference from Pillow's pixels", value, "levels", "lower", goal))
    return Results([], figures, [f"{len(photographs)} JPEGs, most of them {size} pixels"])


def find_photographs(folder: str) -> list[Path]:
    if not folder:
        return []
    found = sorted(Path(folder).glob("*.jpg"))[:IMAGES]
    if not found:
        raise CannotRunError(f"{folder} has no file *.jpg")
    return found


def time_variants(photographs: Sequence[Path]) -> dict[str, float]:
    """Return seconds per image."""
    variants = {name: partial(read_all, read, photographs) for name, read in VARIANTS.items()}
    return {name: taken / len(photographs) for name, taken in medians(interleave(variants, seconds=6)).items()}


def read_all(read: Callable[[Path], Tensor], photographs: Sequence[Path]) -> list[Tensor]:
    return [read(path) for path in photographs]


def difference(read: Callable[[Path], Tensor], photographs: Sequence[Path]) -> float:
    """Return the mean absolute difference from Pillow's pixels, in levels of 255."""
    return float(np.mean([(read(path).float() - pillow(path).float()).abs().mean().item() for path in photographs]))


if __name__ == "__main__":
    main(measure, more_options=add_options)
