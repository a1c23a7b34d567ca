"""One HTML file of photographs on which each word of a caption shows where the model looked."""

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from showattendtell.records import Box
from showattendtell.report.filling import fill
from showattendtell.report.results import write_text

DARKEST = 0.15
"""How bright the photograph stays where the model did not look."""

LONGEST_SIDE = 640
QUALITY = 72
"""Of WebP; a photograph of LONGEST_SIDE pixels takes some 50 kB."""

KILOBYTES_EACH = 70
"""What a photograph with its maps adds to a page, about."""

LEVELS = 255
"""Steps from 0 to the peak in which a map is stored, a byte a region."""

EVEN = 1.25
"""A map whose peak is less than this many times its mean looks at no place more than at others."""

UNGATED = 0.995
"""From here on beta is shown as 1.00; a model that has no gate never has less."""

PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("at the left", "in the middle", "at the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)


class Illustrated(NamedTuple):
    """A caption with its maps (T, rows, columns) and beta (T,), T at least the number of its words."""

    words: Sequence[str]
    maps: np.ndarray
    gates: np.ndarray


class Account(NamedTuple):
    """What a model says of a photograph, the best caption first, and the part that it saw, in fractions."""

    captions: Sequence[Illustrated]
    seen: Box


class Entry(NamedTuple):
    """A photograph on a page: its name, its size, a copy as a data URI, what each model says, and what people say."""

    name: str
    width: int
    height: int
    picture: str
    accounts: Sequence[Account]
    people: Sequence[str] = ()


class Page(NamedTuple):
    """The photographs, the names of the models in the order of each entry's accounts, and what the photographs are."""

    about: str
    models: Sequence[str]
    entries: Sequence[Entry]


class Word(NamedTuple):
    """A word as the page has it: `map` is base64 of a byte a region, `told` what who does not see the map is told."""

    text: str
    beta: float | None
    map: str
    told: str


def make_entry(name: str, photograph: Image.Image, accounts: Sequence[Account], people: Sequence[str] = ()) -> Entry:
    """An entry with a copy of the photograph, its longest side LONGEST_SIDE pixels at most."""
    scale = min(1.0, LONGEST_SIDE / max(photograph.size))
    small = photograph.resize((max(1, round(photograph.width * scale)), max(1, round(photograph.height * scale))))
    content = BytesIO()
    small.save(content, "WEBP", quality=QUALITY, method=4)
    picture = f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"
    return Entry(name, *small.size, picture, accounts, people)


def write_page(page: Page, path: Path) -> None:
    """The page as one file; a `UserError` where that cannot be written."""
    write_text(render(page), path)


def render(page: Page) -> str:
    """The page as HTML; whatever photographs, models and words are called is shown as it is."""
    return fill("page.html", page=page, gated=gated_models(page), spell=spell, darkest=DARKEST)


def gated_models(page: Page) -> list[bool]:
    """Of each model whether it has a gate."""
    return [_is_gated(page, number) for number in range(len(page.models))]


def _is_gated(page: Page, model: int) -> bool:
    captions = [caption for entry in page.entries for caption in entry.accounts[model].captions]
    return any((caption.gates[: len(caption.words)] < UNGATED).any() for caption in captions)


def spell(caption: Illustrated, seen: Box, gated: bool) -> list[Word]:
    """The words of a caption; without beta where the model has no gate."""
    return [
        _spell(text, grid, float(beta) if gated else None, seen)
        for text, grid, beta in zip(caption.words, caption.maps, caption.gates, strict=False)
    ]


def _spell(text: str, grid: np.ndarray, beta: float | None, seen: Box) -> Word:
    content = np.rint(grid / max(grid.max(), np.finfo(np.float32).tiny) * LEVELS).astype(np.uint8).tobytes()
    gate = "" if beta is None else f", beta {beta:.2f}"
    return Word(text, beta, base64.b64encode(content).decode(), f"{text}: {find_place(grid, seen)}{gate}")


def find_place(grid: np.ndarray, seen: Box) -> str:
    """Where in the photograph a map (rows, columns) has its peak, by thirds, in words."""
    if grid.max() < EVEN * grid.mean():
        return "everywhere alike"
    row, column = np.unravel_index(grid.argmax(), grid.shape)
    x = seen.left + (column + 0.5) / grid.shape[1] * (seen.right - seen.left)
    y = seen.top + (row + 0.5) / grid.shape[0] * (seen.bottom - seen.top)
    return f"mostly {PLACES[int(3 * y)][int(3 * x)]}"
