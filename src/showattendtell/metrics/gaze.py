"""Does attention look where people see the thing that a word names?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from showattendtell.records import Box

CENTRE_SPREAD = 0.25
"""The standard deviation of the centre prior, in sides of what is seen."""


class Look(NamedTuple):
    """The attention map at one word that names a thing, and where the thing is.

    weights  (rows, columns) alpha on the grid
    seen     the part of the image that the grid covers
    boxes    the thing's boxes; like `seen` in fractions of the image's width and height
    kind     the sort of thing
    """

    weights: np.ndarray
    seen: Box
    boxes: tuple[Box, ...]
    kind: str = ""


class Find(NamedTuple):
    """How well one map finds one thing, or several on average.

    hit          the share of the map's peaks whose cell's centre lies in a box (pointing game, Zhang et al. 2016)
    correctness  the share of the map that lies within the boxes (attention correctness, Liu et al. 2017)
    """

    hit: float
    correctness: float


class Glance(NamedTuple):
    """What the model's map finds at one word, and what two maps find there that know nothing of the image.

    `uniform` looks everywhere equally much; `centre` is a Gaussian around the middle of what is seen.
    """

    kind: str
    model: Find
    uniform: Find
    centre: Find


class Score(NamedTuple):
    """The mean over words, 0 to 1, and their number."""

    hit_rate: float
    correctness: float
    num_words: int


class Gaze(NamedTuple):
    """Scores of the model's maps and of those that know nothing of the image; the model's also by kind, the commonest
    first."""

    model: Score
    uniform: Score
    centre: Score
    by_kind: Mapping[str, Score]


def score_gaze(glances: Sequence[Glance]) -> Gaze:
    """The scores over all words. A thing outside of what the model sees counts; no map finds it."""
    kinds = Counter(glance.kind for glance in glances if glance.kind).most_common()
    return Gaze(
        model=_mean([glance.model for glance in glances]),
        uniform=_mean([glance.uniform for glance in glances]),
        centre=_mean([glance.centre for glance in glances]),
        by_kind={kind: _mean([glance.model for glance in glances if glance.kind == kind]) for kind, _ in kinds},
    )


def _mean(finds: Sequence[Find]) -> Score:
    """No words score 0."""
    num_words = len(finds)
    hits, correctness = sum(find.hit for find in finds), sum(find.correctness for find in finds)
    return Score(hits / max(num_words, 1), correctness / max(num_words, 1), num_words)


def compare(look: Look) -> Glance:
    rows, columns = look.weights.shape
    inside, covered = centres_inside(look), coverage(look)

    def find(weights: np.ndarray) -> Find:
        return Find(float(inside[weights == weights.max()].mean()), float((weights * covered).sum()))

    uniform = np.full((rows, columns), 1 / (rows * columns))
    return Glance(look.kind, find(look.weights), find(uniform), find(centre_prior(rows, columns)))


def centre_prior(rows: int, columns: int) -> np.ndarray:
    """(rows, columns), sums to 1; exactly symmetrical, so that the middle cells of an even grid tie."""
    down, across = (np.exp(-(((2 * np.arange(n) + 1 - n) / (2 * n * CENTRE_SPREAD)) ** 2) / 2) for n in (rows, columns))
    weights = np.outer(down, across)
    return weights / weights.sum()


def centres_inside(look: Look) -> np.ndarray:
    """(rows, columns): whether the centre of each cell lies in one of the boxes."""
    rows, columns = look.weights.shape
    y, x = np.arange(rows)[:, None] + 0.5, np.arange(columns) + 0.5
    boxes = _on_grid(look)
    return np.any([(b.left <= x) & (x <= b.right) & (b.top <= y) & (y <= b.bottom) for b in boxes], axis=0)


def coverage(look: Look) -> np.ndarray:
    """(rows, columns): the share of each cell's area that the union of the boxes covers, exactly.

    All edges of boxes and cells cut what is seen into rectangles that lie in a box or outside of it as a whole; their
    areas are summed by cell.
    """
    rows, columns = look.weights.shape
    boxes = [box.clipped(Box(0, 0, columns, rows)) for box in _on_grid(look)]
    xs = np.union1d(np.arange(columns + 1), [edge for box in boxes for edge in (box.left, box.right)])
    ys = np.union1d(np.arange(rows + 1), [edge for box in boxes for edge in (box.top, box.bottom)])
    covered = np.zeros((len(ys) - 1, len(xs) - 1))
    for box in boxes:
        across, down = np.searchsorted(xs, (box.left, box.right)), np.searchsorted(ys, (box.top, box.bottom))
        covered[slice(*down), slice(*across)] = 1
    areas = covered * np.outer(np.diff(ys), np.diff(xs))
    by_row = np.add.reduceat(areas, np.searchsorted(ys, np.arange(rows)), axis=0)
    return np.add.reduceat(by_row, np.searchsorted(xs, np.arange(columns)), axis=1)


def _on_grid(look: Look) -> Sequence[Box]:
    """The boxes with the grid's cells as unit and its corner as origin."""
    (rows, columns), seen = look.weights.shape, look.seen
    across, down = columns / (seen.right - seen.left), rows / (seen.bottom - seen.top)
    moved = [Box(b.left - seen.left, b.top - seen.top, b.right - seen.left, b.bottom - seen.top) for b in look.boxes]
    return [box.scaled(across, down) for box in moved]
