"""Built-in data set: generated scenes of colored shapes, with captions and a box for every noun phrase."""

import fcntl
import hashlib
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from rich.console import Console
from rich.progress import track

from showattendtell.errors import UserError, listed
from showattendtell.runtime.files import cache_folder, open_folder, write_errors
from showattendtell.settings import NonNegativeInt, Place, PositiveInt
from showattendtell.types import Box, Caption, Dataset, Example, Phrase

COLORS = {
    "red": "#d62828",
    "green": "#2e8c3e",
    "blue": "#2654d6",
    "yellow": "#f4cc24",
    "purple": "#8034a0",
    "orange": "#f48220",
    "black": "#181818",
    "white": "#fafafa",
}
OUTLINES = {
    "square": "-0.85,-0.85 0.85,-0.85 0.85,0.85 -0.85,0.85",
    "triangle": "0,-0.95 1,0.85 -1,0.85",
    "diamond": "0,-1 0.75,0 0,1 -0.75,0",
    "cross": "0.33,-1 0.33,-0.33 1,-0.33 1,0.33 0.33,0.33 0.33,1 -0.33,1 -0.33,0.33 -1,0.33 -1,-0.33 -0.33,-0.33 "
    "-0.33,-1",
}
"""The corners of shapes with straight sides, as of a polygon in SVG: x to the right, y downwards, from -1 to 1."""
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")
BACKGROUNDS = ("plain", "striped", "checkered", "spotted", "cloudy")
NAME = "{}-{:05d}.png"
SIDE = 128
DIAMETERS = ((45.0, 52.0), (34.0, 39.0), (25.0, 29.0))
"""Ranges of the diameters of a scene's objects in pixels. The largest is the first, which captions name first."""
FINENESS = 3
"""Supersampling factor of drawings, for smooth edges."""
CONVERSE = {
    "left of": "to its right",
    "right of": "to its left",
    "above": "below it",
    "below": "above it",
    "near": "near it",
}
"""Position of the second of two objects, given the relation of the first to it."""


class SceneObject(NamedTuple):
    """A shape of a scene: its center and diameter in pixels."""

    shape: str
    color: str
    x: float
    y: float
    diameter: float

    def corners(self) -> list[tuple[float, float]]:
        """Return the corners of the outline in pixels."""
        if self.shape in OUTLINES:
            outline = [tuple(map(float, corner.split(","))) for corner in OUTLINES[self.shape].split()]
        else:
            radii = [1.0, 0.45] * 5 if self.shape == "star" else [1.0] * 72  # a circle is a polygon of 72 corners
            angles = [2 * math.pi * k / len(radii) - math.pi / 2 for k in range(len(radii))]
            outline = [(r * math.cos(angle), r * math.sin(angle)) for r, angle in zip(radii, angles, strict=True)]
        return [(self.x + self.diameter / 2 * x, self.y + self.diameter / 2 * y) for x, y in outline]

    @property
    def box(self) -> Box:
        """Return the bounding box in pixels."""
        xs, ys = zip(*self.corners(), strict=True)
        return Box(min(xs), min(ys), max(xs), max(ys))


class Scene(NamedTuple):
    """A background from `BACKGROUNDS`, and two or three objects, the largest first."""

    background: str
    objects: tuple[SceneObject, ...]


def read_shapes(
    root: Place, train: PositiveInt = 2000, val: PositiveInt = 200, test: PositiveInt = 200, seed: NonNegativeInt = 0
) -> Dataset:
    """Read the built-in data set, which is drawn at the first use.

    Args:
        root: folder of the drawings.
        train, val, test: images per split; an image depends only on `seed`, its split and its number.

    Raises:
        UserError: the folder cannot be written, or has files of something else.
    """
    sizes = {"train": train, "val": val, "test": test}
    recipe = json.dumps({"version": 2, "seed": seed, **sizes})
    name = f"shapes-{hashlib.sha256(recipe.encode()).hexdigest()[:6]}"
    folder = cache_folder(root) / name
    if not folder.exists():
        if others := sorted(file.name for file in folder.parent.glob("*") if not file.name.startswith("shapes-")):
            raise UserError(
                f"{folder.parent} has other files ({listed(others)}), and the built-in data set draws its own images; "
                "leave dataset.root out, or train on yours with dataset=custom"
            )
        with write_errors(folder, "set cache to another folder"), open_folder(folder.parent) as parent:
            fcntl.flock(parent, fcntl.LOCK_EX)
            if not folder.exists():
                _draw_all(folder, sizes, seed)

    def example(split: str, number: int) -> Example:
        rng, file = np.random.default_rng([seed, *split.encode(), number]), NAME.format(split, number)
        scene = compose_scene(rng)
        [of_captions] = rng.bit_generator.seed_seq.spawn(1)  # type: ignore[attr-defined]
        return Example(file, f"{folder}/{file}", describe_scene(scene, np.random.default_rng(of_captions)))

    return Dataset(name, {split: tuple(example(split, i) for i in range(size)) for split, size in sizes.items()})


def _draw_all(folder: Path, sizes: dict[str, int], seed: int) -> None:
    """Draw all images into a temporary folder, then rename it: an interrupted run leaves no partial data set."""
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for split, size in sizes.items():
        for number in track(range(size), f"drawing shapes ({split})", console=Console(stderr=True), transient=True):
            rng = np.random.default_rng([seed, *split.encode(), number])
            draw_scene(compose_scene(rng), rng).save(unfinished / NAME.format(split, number))
    unfinished.rename(folder)


def compose_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene at random: two or three objects of different shape or color that do not touch, largest first."""
    count = int(rng.integers(2, 4))
    objects: list[SceneObject] = []
    while len(objects) < count:
        diameter = float(rng.uniform(*DIAMETERS[len(objects)]))
        x, y = map(float, rng.uniform(diameter / 2 + 4, SIDE - diameter / 2 - 4, size=2))
        candidate = SceneObject(str(rng.choice(SHAPES)), str(rng.choice(list(COLORS))), x, y, diameter)
        apart = all(math.hypot(x - other.x, y - other.y) > 0.75 * (diameter + other.diameter) for other in objects)
        if apart and all(candidate[:2] != other[:2] for other in objects):
            objects.append(candidate)
        elif rng.random() < 0.02:  # start again, since there may be no space left
            objects.clear()
    return Scene(str(rng.choice(BACKGROUNDS)), tuple(objects))


def describe_scene(scene: Scene, rng: np.random.Generator) -> tuple[Caption, ...]:
    """Return five different captions at random, each with phrases for its objects, which are named by size."""
    first, second, *others = scene.objects
    dx, dy = first.x - second.x, first.y - second.y
    relation_word = "near"  # on a diagonal
    if abs(dx) > 1.5 * abs(dy):
        relation_word = "left of" if dx < 0 else "right of"
    elif abs(dy) > 1.5 * abs(dx):
        relation_word = "above" if dy < 0 else "below"
    position, ground = CONVERSE[relation_word], f"on a {scene.background} background"
    sentences: list[list[str | SceneObject]] = [
        [first, relation_word, second],
        [first, "is", relation_word, second, ground],
        [first, "with", second, position],
        [first, "with", second, position, ground],
        ["there is", first, "with", second, position],
        [first, "and", second, ground],
        ["there is", first, "and", second],
    ]
    for third in others:
        sentences.append([first, "and", second, "and", third])
        sentences.append(["there is", first, relation_word, second, "and", third])
    order = rng.permutation(len(sentences))[:5]
    return tuple(_mark(sentences[index]) for index in order)


def _mark(sentence: list[str | SceneObject]) -> Caption:
    """Return a caption with a phrase for each object."""
    words, phrases = [], []
    for part in sentence:
        if isinstance(part, SceneObject):
            words += ["an" if part.color[0] in "aeiou" else "a", part.color, part.shape]
            phrases.append(Phrase(len(words) - 1, (part.box.scaled(1 / SIDE, 1 / SIDE),)))
        else:
            words += part.split()
    return Caption(tuple(words), tuple(phrases), " ".join(words))


def draw_scene(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """Draw a scene as an RGB image of SIDE x SIDE pixels."""
    image = _background(scene.background, rng)
    pen = ImageDraw.Draw(image)
    for item in scene.objects:
        corners = [(FINENESS * x, FINENESS * y) for x, y in item.corners()]
        pen.polygon(corners, fill=COLORS[item.color], outline=(60, 60, 60), width=FINENESS)
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _background(kind: str, rng: np.random.Generator) -> Image.Image:
    """Draw a pale texture of two similar tones, SIDE * FINENESS pixels square."""
    side = SIDE * FINENESS
    tone = rng.integers(150, 215, size=3)
    other = np.clip(tone + rng.choice([-1, 1]) * rng.integers(14, 26), 0, 255)
    image = Image.new("RGB", (side, side), tuple(map(int, tone)))
    pen, ink = ImageDraw.Draw(image), tuple(map(int, other))
    step = int(rng.integers(10, 20)) * FINENESS
    if kind == "cloudy":
        noise = Image.fromarray(rng.integers(0, 256, size=(6, 6), dtype=np.uint8))
        coarse = noise.resize((side, side), Image.Resampling.BICUBIC)
        image.paste(Image.new("RGB", (side, side), ink), mask=coarse.filter(ImageFilter.GaussianBlur(4 * FINENESS)))
    for x, y in itertools.product(range(0, side, step), repeat=2):
        column, row = x // step, y // step
        if kind == "spotted":
            pen.ellipse((x + step // 4, y + step // 4, x + 3 * step // 4, y + 3 * step // 4), fill=ink)
        elif (kind == "striped" and column % 2 == 0) or (kind == "checkered" and (column + row) % 2):
            pen.rectangle((x, y, x + step - 1, y + step - 1), fill=ink)
    return image
