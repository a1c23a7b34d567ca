"""Additive scores e_i = u . tanh(p_i + q) of captions with the regions of their images.

On the processor they are compiled loops over tanh(p + q) = 2 / (1 + e^-2p e^-2q) - 1: one exponential an image and one
a step, in between a product and a reciprocal. Nothing of size B x L x A is stored; the backward pass computes the
reciprocals again. Elsewhere, in other precisions, and where an exponential would not be a number, it is plain torch.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from showattendtell.model import loops
from showattendtell.model.loops import Groups, compilable

FURTHEST = 43.0
"""The largest |p| and |q| of which e^-2p and e^-2q are numbers in single precision."""


@dataclass(frozen=True)
class Keys:
    """Of images' regions (I, L, A): e^-2p where the compiled loops take it, or else p. Either has p's gradient."""

    values: Tensor
    decayed: bool

    @classmethod
    def of(cls, sums: Tensor) -> "Keys":
        return cls(_Decayed.apply(sums), True) if within_reach(sums) else cls(sums, False)

    def __getitem__(self, rows: Tensor) -> "Keys":
        return Keys(self.values[rows], self.decayed)

    @property
    def sums(self) -> Tensor:
        """p."""
        return self.values.log() / -2 if self.decayed else self.values


class _Decayed(torch.autograd.Function):
    """e^-2p. What comes back to it is p's gradient already, as `Pairs.scores_back` gives it."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor) -> Tensor:
        return decay(sums.contiguous())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def within_reach(sums: Tensor) -> bool:
    """Whether the compiled loops take these p or q."""
    if not compilable(sums):
        return False
    least, most = sums.detach().aminmax()
    return float(least) >= -FURTHEST and float(most) <= FURTHEST


def decay(sums: Tensor) -> Tensor:
    """e^-2p."""
    return (-2 * sums).exp_()


class Pairs:
    """All captions with all regions of their images. Both methods take the first b of the B captions.

    Scores lack the constant -sum_a u_a, of which a softmax knows nothing.

    Args:
        weights: u, (A,).
    """

    def __init__(self, groups: Groups, keys: Keys, weights: Tensor):
        self.groups, self.keys, self.weights = groups, keys, weights.contiguous()

    def scores(self, queries: Tensor) -> Tensor:
        """e (b, L) of q (b, A)."""
        decays = self._decays(queries)
        scores = queries.new_empty(len(queries), self.keys.values.shape[1])
        if decays is not None:
            self.groups.run(loops.score, len(queries), *decays, self.weights, scores)
            return scores
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
        if not self.keys.decayed or not within_reach(queries):
            return None
        return self.keys.values, decay(queries)

    def _fit(self, images: slice | Tensor, queries: Tensor) -> Tensor:
        """sigmoid(2 (p + q)), (k, L, A)."""
        return (self._doubled[images] + 2 * queries.unsqueeze(1)).sigmoid_()

    @cached_property
    def _doubled(self) -> Tensor:
        return 2 * self.keys.sums


class AdditiveScores(torch.autograd.Function):
    """The scores of one step."""

    @staticmethod
    def forward(ctx: Any, groups: Groups, keys: Tensor, decayed: bool, queries: Tensor, weights: Tensor) -> Tensor:
        ctx.groups, ctx.decayed = groups, decayed
        ctx.save_for_backward(keys, queries, weights)
        return Pairs(groups, Keys(keys, decayed), weights).scores(queries)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        keys, queries, weights = ctx.saved_tensors
        to_sums, to_weights = keys.new_zeros(keys.shape), weights.new_zeros(len(keys), len(weights))
        pairs = Pairs(ctx.groups, Keys(keys, ctx.decayed), weights)
        to_queries = pairs.scores_back(queries, gradient, to_sums, to_weights)
        return None, to_sums, None, to_queries, to_weights.sum(dim=0)
