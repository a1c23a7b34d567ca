"""An HTML file of captioned photographs that shows for each word where the model looked."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from showattendtell.types import Box
from showattendtell.visualization.image_captions import ImageCaptions
from showattendtell.visualization.rendering import DARKEST, UNGATED, fill
from showattendtell.visualization.result_files import write_text

LONGEST_SIDE = 640
QUALITY = 72
"""Of WebP; a photograph of LONGEST_SIDE pixels takes some 50 kB."""

KILOBYTES_EACH = 70
"""Approximate size of a photograph with its maps on a page."""

LEVELS = 255
"""Level of the peak of a stored map, which has one byte per region."""

EVEN = 1.25
"""A map counts as uniform if its peak is less than this many times its mean."""

PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("at the left", "in the middle", "at the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)


class PageEntry(NamedTuple):
    """A photograph on a page.

    name            shown as it is
    width, height   of the reduced copy, in pixels
    picture         the reduced copy as a data URI
    outputs         the captions of each model; their photographs are reduced too
    references      reference captions
    """

    name: str
    width: int
    height: int
    picture: str
    outputs: Sequence[ImageCaptions]
    references: Sequence[str] = ()


class Page(NamedTuple):
    """Photographs with captions: a description of them, the names of the models, and an entry per photograph."""

    about: str
    models: Sequence[str]
    entries: Sequence[PageEntry]


def make_entry(name: str, outputs: Sequence[ImageCaptions], references: Sequence[str] = ()) -> PageEntry:
    """Return an entry with a copy of the photograph, whose longest side has LONGEST_SIDE pixels at most."""
    photograph = outputs[0].photograph
    scale = min(1.0, LONGEST_SIDE / max(photograph.size))
    small = photograph.resize((max(1, round(photograph.width * scale)), max(1, round(photograph.height * scale))))
    content = BytesIO()
    small.save(content, "WEBP", quality=QUALITY, method=4)
    picture = f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"
    copy = Image.open(content)  # keeps the compressed bytes only, until its pixels are used
    return PageEntry(name, *small.size, picture, [replace(one, photograph=copy) for one in outputs], references)


def write_page(page: Page, path: Path) -> None:
    """Write the page as one file; raise `UserError` if it cannot be written."""
    write_text(render(page), path)


def render(page: Page, template: str = "page.html") -> str:
    """Return the page as HTML, or its cards alone with the template `cards.html`.

    Names of photographs and models and words are escaped.
    """
    helpers = {"encode_map": encode_map, "describe_word": describe_word, "zip": zip}
    gated = [_is_gated(page, model) for model in range(len(page.models))]
    return fill(template, page=page, gated=gated, darkest=DARKEST, **helpers)


def _is_gated(page: Page, model: int) -> bool:
    captions = [caption for entry in page.entries for caption in entry.outputs[model].captions]
    return any((caption.gates[: len(caption.words)] < UNGATED).any() for caption in captions)


def encode_map(grid: np.ndarray) -> str:
    """Return attention (rows, columns) as base64 of one byte per region, 255 at the peak."""
    levels = np.rint(grid / max(grid.max(), np.finfo(np.float32).tiny) * LEVELS)
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode()


def describe_word(word: str, grid: np.ndarray, gate: float | None, seen: Box) -> str:
    """Return where the model looked at a word as text, for readers who do not see the map."""
    return f"{word}: {find_place(grid, seen)}" + ("" if gate is None else f", beta {gate:.2f}")


def find_place(grid: np.ndarray, seen: Box) -> str:
    """Return in which third of the photograph, across and down, a map (rows, columns) has its peak, in words."""
    if grid.max() < EVEN * grid.mean():
        return "everywhere alike"
    row, column = np.unravel_index(grid.argmax(), grid.shape)
    x = seen.left + (column + 0.5) / grid.shape[1] * (seen.right - seen.left)
    y = seen.top + (row + 0.5) / grid.shape[0] * (seen.bottom - seen.top)
    return f"mostly {PLACES[int(3 * y)][int(3 * x)]}"
