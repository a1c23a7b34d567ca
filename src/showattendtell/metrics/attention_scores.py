"""Attention maps against ground-truth boxes, as `torchmetrics.Metric` classes."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from showattendtell.metrics.attention import MAPS, GroundedWord, compare_maps


class _AttentionScore(Metric):
    """Mean score of attention maps at words whose objects have ground-truth boxes, in percent.

    `compute` returns the score of the `model`, and of two maps that ignore the image: `uniform` weights, and a Gaussian
    around the `center`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    score: Literal["hit", "correctness"]
    """Of a map, in an `AttentionHit`."""
    sums: Tensor
    words: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(len(MAPS), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("words", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, words: Iterable[GroundedWord]) -> None:
        """Add attention maps at words, with the boxes of the words' objects."""
        for hits in map(compare_maps, words):
            self.sums += torch.tensor([getattr(getattr(hits, name), self.score) for name in MAPS]).to(self.sums)
            self.words += 1

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all words so far; 0 without words."""
        return dict(zip(MAPS, 100 * self.sums / self.words.clamp(min=1), strict=True))


class PointingGame(_AttentionScore):
    """Pointing game (Zhang et al. 2016): rate of maps whose maximum lies in a box of the object.

    Of several equal maxima, the fraction that lies in a box counts.
    """

    score = "hit"


class AttentionCorrectness(_AttentionScore):
    """Attention correctness (Liu et al. 2017): fraction of the attention inside the boxes of the object."""

    score = "correctness"
