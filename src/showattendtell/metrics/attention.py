"""Attention metrics: maps against the ground-truth boxes of objects, statistics of maps.

A map has `rows` x `columns` weights, whose sum is 1; so have the maps that it is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from showattendtell.text.vocabulary import PAD, Vocabulary
from showattendtell.types import Box, CaptionerOutput

if TYPE_CHECKING:
    from torch import Tensor


_CLOSED = {
    "determiner": "a an the this that these those some any each every another other both all no",
    "preposition": "about above across after against along among around as at before behind below beneath beside "
    "between by down during for from in inside into near next of off on onto out outside over past through to toward "
    "towards under up upon while with without",
    "verb_form": "am are be been being can could did do does doing had has have having is may might was were will "
    "would",
    "conjunction": "and but or nor so than then when where",
    "pronoun": "he her hers him his i it its itself one ones she their theirs them themselves they we who whose "
    "which you",
    "number": "two three four five six seven eight nine ten several many few",
    "end": "<eos>",
}
_CLASS = {word: name for name, words in _CLOSED.items() for word in words.split()}

CONTENT = "content"
WORD_CLASSES = (*_CLOSED, CONTENT)
"""Word classes. Words that are in no list (nouns, verbs, adjectives) are content words."""


def word_class(word: str) -> str:
    """Return the class of a word, one of `WORD_CLASSES`.

    >>> word_class("on"), word_class("dog"), word_class("<eos>")
    ('preposition', 'content', 'end')
    """
    return _CLASS.get(word, CONTENT)


class GroundedWord(NamedTuple):
    """Attention map at a word that names an object, and the object's position.

    weights  (rows, columns) alpha on the grid
    seen     the part of the image that the grid covers
    boxes    the object's boxes; like `seen` in fractions of the image's width and height
    kind     the type of object
    """

    weights: np.ndarray
    seen: Box
    boxes: tuple[Box, ...]
    kind: str = ""


class AttentionHit(NamedTuple):
    """Scores of one map for one object, or their average.

    hit          fraction of the map's peaks whose region's center lies in a box (pointing game, Zhang et al. 2016)
    correctness  fraction of the map's weight inside the boxes (attention correctness, Liu et al. 2017). The weight of a
                 region is spread evenly over its area
    """

    hit: float
    correctness: float


class WordHits(NamedTuple):
    """Scores at one word: of the model's map, and of two maps that ignore the image.

    kind     type of the object
    model    the model's map
    uniform  equal weights
    center   `center_prior`
    """

    kind: str
    model: AttentionHit
    uniform: AttentionHit
    center: AttentionHit


MAPS = WordHits._fields[1:]
"""The maps in `WordHits`."""


def score_attention(words: Sequence[WordHits]) -> dict[str, Any]:
    """Return the mean scores over all words by their names in result files, 0 without words; rates in percent.

    Those of maps that ignore the image are in `attention_baselines`, those by kind in `attention_by_kind`, most
    frequent first. A word whose object is outside the visible part counts; every map scores 0 there.
    """

    def mean(scores: Sequence[AttentionHit]) -> dict[str, float]:
        number = max(len(scores), 1)
        return {
            "pointing_game": 100 * (sum(hit for hit, _ in scores) / number),
            "attention_correctness": 100 * (sum(part for _, part in scores) / number),
            "pointing_game_words": len(scores),
        }

    model, uniform, center = (mean([getattr(word, name) for word in words]) for name in MAPS)
    kinds = Counter(word.kind for word in words if word.kind).most_common()
    by_kind = {kind: mean([word.model for word in words if word.kind == kind]) for kind, _ in kinds}
    return {**model, "attention_baselines": {"uniform": uniform, "center": center}, "attention_by_kind": by_kind}


def compare_maps(word: GroundedWord) -> WordHits:
    """Score the attention map at a word, and the two that ignore the image on the same regions."""
    rows, columns = word.weights.shape
    boxes = boxes_on_grid(word.boxes, word.seen, rows, columns)
    inside, [covered] = centers_inside(boxes, rows, columns), covered_areas(boxes[np.newaxis], rows, columns)

    def score(weights: np.ndarray) -> AttentionHit:
        # The pointing game takes one maximum. Several equal maxima count by the fraction that hits, which is the
        # expectation of a random choice among them: a uniform map hits as often as its cells lie in the boxes.
        return AttentionHit(float(inside[weights == weights.max()].mean()), float((weights * covered).sum()))

    uniform = np.full((rows, columns), 1 / word.weights.size)
    return WordHits(word.kind, *map(score, (word.weights, uniform, center_prior(rows, columns))))


SPREAD = 0.25
"""Standard deviation of the center prior, in sides of the visible part."""


def center_prior(rows: int, columns: int) -> np.ndarray:
    """Return a Gaussian (rows, columns) around the center of the visible part, with sum 1.

    It is exactly symmetric, so the central cells of an even grid tie.
    """
    # cell k of n has its center at (k + 1/2) / n, which is (2k + 1 - n) / 2n from the middle
    down, across = (np.exp(-(((2 * np.arange(n) + 1 - n) / (2 * n * SPREAD)) ** 2) / 2) for n in (rows, columns))
    weights = np.outer(down, across)
    return weights / weights.sum()


def centers_inside(boxes: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return a mask (rows, columns): whether the center of each cell lies in one of the boxes (M, 4), in cells."""
    y, x = np.arange(rows)[:, np.newaxis] + 0.5, np.arange(columns) + 0.5
    left, top, right, bottom = boxes.T[..., np.newaxis, np.newaxis]
    return ((left <= x) & (x <= right) & (top <= y) & (y <= bottom)).any(axis=0)


def covered_areas(boxes: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the exact area of each cell that the union of boxes covers, for N unions of M boxes.

    Args:
        boxes: (N, M, 4), left, top, right and bottom in cells from the grid's corner. Empty boxes cover nothing.

    Returns:
        (N, rows, columns), 0 to 1.
    """
    # All edges of boxes and cells cut the grid into rectangles. Each lies entirely inside or outside of every box, and
    # in one cell; the areas of those inside are summed per cell.
    left, top, right, bottom = np.moveaxis(np.asarray(boxes, dtype=np.float64), 2, 0)
    inside_x, across = _cut(left, right, columns)
    inside_y, down = _cut(top, bottom, rows)
    covered = (inside_y @ inside_x.swapaxes(1, 2)) > 0  # (N, Y, X): the number of boxes around each rectangle
    return down.swapaxes(1, 2) @ covered @ across


def _cut(starts: np.ndarray, ends: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the range from 0 to `cells` at whole numbers and at the sides (N, M) of boxes into X intervals.

    Returns:
        Whether each interval lies between the sides of each box (N, X, M), as 0 or 1, and the length of each interval
        in the cell that it is part of, 0 in the others (N, X, cells).
    """
    grid_lines = np.broadcast_to(np.arange(cells + 1.0), (len(starts), cells + 1))
    edges = np.sort(np.concatenate([starts, ends, grid_lines], axis=1).clip(0, cells), axis=1)
    lengths = np.diff(edges)
    middles = edges[:, :-1] + lengths / 2
    inside = (starts[:, np.newaxis] < middles[..., np.newaxis]) & (middles[..., np.newaxis] < ends[:, np.newaxis])
    in_cell = np.floor(middles)[..., np.newaxis] == np.arange(cells)
    return inside.astype(np.float32), in_cell * lengths[..., np.newaxis]


def boxes_on_grid(boxes: Sequence[Box] | np.ndarray, seen: Box, rows: int, columns: int) -> np.ndarray:
    """Return boxes (M, 4), which like `seen` are in fractions of the image's sides, in cells from the corner of the
    grid that covers `seen`."""
    corner = np.array([seen.left, seen.top, seen.left, seen.top])
    size = np.array([(seen.right - seen.left) / columns, (seen.bottom - seen.top) / rows] * 2)
    return (np.array(boxes, dtype=np.float64).reshape(-1, 4) - corner) / size


MIN_MOVEMENT = 0.01
"""Movement (see `attention_statistics`) below which maps are reported as constant."""


def attention_statistics(outputs: CaptionerOutput, tokens: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Return the means of three statistics of alpha (B, T, L) over the steps at which `tokens` (B, T) has a word, and
    the numbers of their items.

    entropy   -sum_i alpha_i log alpha_i, mean over words, in nats: 0 for one region, log L for uniform weights
    movement  sum_i |alpha_ti - alpha_(t-1)i| / 2, mean over pairs of consecutive words: 0 for a constant map, 1 for
              maps without a common region
    coverage  sum_i min(1, sum_t alpha_ti) / min(L, T), mean over captions: 1 if the total weight of every region is at
              most 1 (or, of captions longer than L, at least 1)
    """
    import torch  # here, so that tables of scores do not wait for it

    mask = tokens != PAD
    words, captions = int(mask.sum()), len(tokens)
    entropy = (torch.special.entr(outputs.weights).sum(dim=2) * mask).sum() / words
    movement = (outputs.weights.diff(dim=1).abs().sum(dim=2) / 2 * mask[:, 1:]).sum()
    covered = (outputs.weights * mask.unsqueeze(2)).sum(dim=1).clamp(max=1).sum(dim=1)
    largest = mask.sum(dim=1).clamp(max=outputs.weights.shape[2])
    return {
        "entropy": (entropy, words),
        "movement": (movement / max(1, words - captions), words - captions),
        "coverage": ((covered / largest).mean(), captions),
    }


class WordClasses:
    """Means of the gate beta by word class (`word_class`), such as content words and determiners."""

    def __init__(self, vocabulary: Vocabulary):
        import torch

        names = [word_class(word) for word in vocabulary.words]
        self.names = [name for name in WORD_CLASSES if name in names]
        self._class_of = torch.tensor([self.names.index(name) for name in names])

    def betas(self, outputs: CaptionerOutput, tokens: Tensor) -> dict[str, tuple[Tensor, int]]:
        """Return the mean of beta (B, T) over the words of each class in `tokens` (B, T), and their number."""
        classes = self._class_of.to(tokens.device)[tokens].masked_fill(tokens == PAD, -1)
        means = {}
        for i, name in enumerate(self.names):
            mask = classes == i
            count = int(mask.sum())
            means[name] = (outputs.gates * mask).sum() / max(1, count), count
        return means
