"""Soft attention with a temperature."""

from collections.abc import Callable

from torch import Tensor

from showattendtell.models.attention import Gate, SoftAttention
from showattendtell.models.interfaces import AttentionCache
from showattendtell.models.scores import AdditiveScore, ScoreFunction
from showattendtell.settings import PositiveFloat, PositiveInt


class SharpAttention(SoftAttention):
    """alpha = softmax(sharpness * e): the scores of soft attention, multiplied before the softmax.

    Args:
        score: the score function of a region and the state.
        gate: the gate on the context: scalar, channel or none.
        sharpness: the factor on the scores.
    """

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
        gate: Gate = "scalar",
        sharpness: PositiveFloat = 2.0,
    ):
        super().__init__(region_dim, hidden_dim, score, gate)
        self.sharpness = sharpness

    def scores(self, cache: AttentionCache, hidden: Tensor) -> Tensor:
        return self.sharpness * super().scores(cache, hidden)
