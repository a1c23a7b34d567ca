"""A page with everything on it that a page can have, of two made-up photographs."""

import numpy as np
from PIL import Image

from showattendtell.records import Box
from showattendtell.report.pages import Account, Entry, Illustrated, Page, make_entry

HOSTILE = '<script>alert("x")</script> & "co".jpg'
WORDS = ["a", "<b>dog</b>", "runs", "w" * 60]
SEEN = Box(0.25, 0.0, 0.75, 1.0)
PEAKS = [(0, 0), (2, 1), (1, 2), (2, 2)]
"""Row and column of the region, of 3 x 3, that has nearly all attention at each word."""


def peaked(rows: int, columns: int, row: int, column: int) -> np.ndarray:
    grid = np.full((rows, columns), 0.1 / (rows * columns - 1), dtype=np.float32)
    grid[row, column] = 0.9
    return grid


def made_up(seed: int, steps: int, rows: int, columns: int) -> np.ndarray:
    """Maps (T, rows, columns) that sum to 1."""
    return np.random.default_rng(seed).dirichlet(np.ones(rows * columns), steps).reshape(steps, rows, columns)


def gated() -> Account:
    maps = np.stack([peaked(3, 3, *peak) for peak in PEAKS])
    other = Illustrated(["the", "dog"], made_up(1, 3, 3, 3), np.full(3, 0.5))
    return Account([Illustrated(WORDS, maps, np.array([0.1, 1.0, 0.5, 0.25])), other], SEEN)


def ungated() -> Account:
    return Account([Illustrated(["a", "cat"], made_up(2, 3, 7, 7), np.ones(3))], Box(0, 0, 1, 1))


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Soft colours."""
    colours = np.random.default_rng(seed).integers(60, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)


def one_model() -> Page:
    return Page("2 photographs", ["soft/best.ckpt"], [entry([gated()]), entry([gated()], "n" * 200 + ".jpg")])


def two_models() -> Page:
    return Page("1 photograph", ["soft/best.ckpt", "hard/best.ckpt"], [entry([gated(), ungated()])])


def entry(accounts: list[Account], name: str = HOSTILE) -> Entry:
    return make_entry(name, photograph(300, 200), accounts, ["A dog <runs>.", "The dog is fast."])
