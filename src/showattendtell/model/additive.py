"""Additive scores e_i = u . tanh(p_i + q) of captions with the regions of their images.

On the processor they are compiled loops over tanh(p + q) = 2 / (1 + e^-2p e^-2q) - 1: one exponential an image and one
a step, in between a product and a reciprocal. Nothing of size B x L x A is stored; the backward pass computes the
reciprocals again. Elsewhere, in other precisions, and where |q| is beyond what the keys reach, it is plain torch.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from showattendtell.model import loops
from showattendtell.model.loops import Groups, compilable

FURTHEST = 43.0
"""The largest |p| and |q| of which e^-2p and e^-2q are numbers in single precision."""

SATURATED = 10.0
"""From here on tanh is 1 in single precision."""


@dataclass(frozen=True)
class Keys:
    """Of images' regions (I, L, A): p, or e^-2p where all queries are known to be within reach of that."""

    values: Tensor
    decayed: bool = False

    def __getitem__(self, rows: Tensor) -> "Keys":
        return Keys(self.values[rows], self.decayed)

    @cached_property
    def decays(self) -> Tensor | None:
        """e^-2p; None where the compiled loops do not take it."""
        if self.decayed:
            return self.values
        return decay(self.values.detach()) if compilable(self.values) else None

    @cached_property
    def reach(self) -> float:
        """The largest |q| with which `decays` give the scores of p: where e^-2p is 0 or infinite, tanh(p + q) is to be
        1 or -1 whatever q is.
        """
        if self.decayed:
            return math.inf
        furthest = _furthest(self.values)
        if math.isnan(furthest):
            return -math.inf
        return FURTHEST if furthest <= FURTHEST else FURTHEST - SATURATED


def _furthest(sums: Tensor) -> float:
    least, most = sums.detach().aminmax()
    return max(-float(least), float(most))


def decay(sums: Tensor) -> Tensor:
    """e^-2p."""
    return (-2 * sums).exp_()


class Pairs:
    """All captions with all regions of their images. The methods take the first b of the B captions.

    Scores lack the constant -sum_a u_a, of which a softmax knows nothing.

    Args:
        weights: u, (A,).
    """

    def __init__(self, groups: Groups, keys: Keys, weights: Tensor):
        self.groups, self.keys, self.weights = groups, keys, weights.contiguous()
        self._strayed = False

    def kept(self) -> Keys:
        """What is needed of the keys to go back over all that has been scored."""
        decays = self.keys.decays
        return self.keys if self._strayed or decays is None else Keys(decays, decayed=True)

    def scores(self, queries: Tensor) -> Tensor:
        """e (b, L) of q (b, A)."""
        decays = self._decays(queries)
        scores = queries.new_empty(len(queries), self.keys.values.shape[1])
        if decays is not None:
            self.groups.run(loops.score, len(queries), *decays, self.weights, scores)
            return scores
        self._strayed = True
        for images, rows in self.groups.pieces(len(queries)):
            scores[rows] = 2 * self._fit(images, queries[rows]) @ self.weights
        return scores

    def scores_back(self, queries: Tensor, gradient: Tensor, to_sums: Tensor, to_weights: Tensor) -> Tensor:
        """q's gradient (b, A) from q and the scores' gradient (b, L).

        p's is added to `to_sums` (I, L, A), and u's, of which the sum over images is meant, to `to_weights` (I, A).
        """
        to_queries = queries.new_zeros(queries.shape)
        decays = self._decays(queries)
        if decays is not None:
            from_scores, to = gradient.contiguous(), (to_sums, to_queries, to_weights)
            self.groups.run(loops.score_back, len(queries), *decays, self.weights, from_scores, *to)
            return to_queries
        for images, rows in self.groups.pieces(len(queries)):
            fit, given = self._fit(images, queries[rows]), gradient[rows]  # (k, L, A), (k, L)
            to_weights[0] += 2 * (given.flatten() @ fit.flatten(0, 1))
            slope = torch.addcmul(fit, fit, fit, value=-1).mul_(given.unsqueeze(2))
            to_queries[rows] = 4 * self.weights * slope.sum(dim=1)
            if isinstance(images, slice):
                to_sums[images] += 4 * self.weights * slope.sum(dim=0)
            else:
                to_sums.index_add_(0, images, 4 * self.weights * slope)
        return to_queries

    def _decays(self, queries: Tensor) -> tuple[Tensor, Tensor] | None:
        """e^-2p and e^-2q, where the compiled loops take them."""
        if self.keys.decays is None or not compilable(queries) or not _furthest(queries) <= self.keys.reach:
            return None
        return self.keys.decays, decay(queries)

    def _fit(self, images: slice | Tensor, queries: Tensor) -> Tensor:
        """sigmoid(2 (p + q)), (k, L, A)."""
        return (self._doubled[images] + 2 * queries.unsqueeze(1)).sigmoid_()

    @cached_property
    def _doubled(self) -> Tensor:
        return -self.keys.values.log() if self.keys.decayed else 2 * self.keys.values


class AdditiveScores(torch.autograd.Function):
    """The scores of one step."""

    @staticmethod
    def forward(ctx: Any, groups: Groups, keys: Keys, sums: Tensor, queries: Tensor, weights: Tensor) -> Tensor:
        """Args:
        sums: the keys' own, for their gradient.
        """
        pairs = Pairs(groups, keys, weights)
        scores, kept = pairs.scores(queries), pairs.kept()
        ctx.groups, ctx.decayed = groups, kept.decayed
        ctx.save_for_backward(kept.values, queries, weights)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, queries, weights = ctx.saved_tensors
        to_sums, to_weights = values.new_zeros(values.shape), weights.new_zeros(len(values), len(weights))
        pairs = Pairs(ctx.groups, Keys(values, ctx.decayed), weights)
        to_queries = pairs.scores_back(queries, gradient, to_sums, to_weights)
        return None, None, to_sums, to_queries, to_weights.sum(dim=0)
