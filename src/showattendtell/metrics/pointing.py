"""Does attention look where people see the thing that a word names?"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from showattendtell.records import Box


class Look(NamedTuple):
    """The attention map at one word that names a thing, and where the thing is.

    weights  (rows, columns) alpha on the grid
    seen     the part of the photograph that the grid covers, in its pixels
    boxes    the thing's boxes, in the photograph's pixels
    """

    weights: np.ndarray
    seen: Box
    boxes: tuple[Box, ...]


class Pointing(NamedTuple):
    """hit_rate: the share of words whose map peaks within a box, 0 to 1 (pointing game, Zhang et al. 2016).
    num_words: the words that were looked at."""

    hit_rate: float
    num_words: int


def pointing_game(looks: Iterable[Look]) -> Pointing:
    """The share of maps whose heaviest region has its centre within one of the thing's boxes."""
    hits = [_hits(look) for look in looks]
    return Pointing(sum(hits) / max(len(hits), 1), len(hits))


def _hits(look: Look) -> bool:
    rows, columns = look.weights.shape
    row, column = divmod(int(look.weights.argmax()), columns)
    x = look.seen.left + (column + 0.5) * (look.seen.right - look.seen.left) / columns
    y = look.seen.top + (row + 0.5) * (look.seen.bottom - look.seen.top) / rows
    return any(box.contains(x, y) for box in look.boxes)
