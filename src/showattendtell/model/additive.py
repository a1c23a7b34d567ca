"""Additive scores e_i = u . tanh(p_i + q) of captions with the regions of their images.

On the processor they are compiled loops over tanh(p + q) = 2 / (1 + e^-2p e^-2q) - 1: one exponential an image and one
a step, in between a product and a reciprocal. Nothing of size B x L x A is stored; the backward pass computes the
reciprocals again. Elsewhere, in other precisions, and where an exponential would not be a number, it is plain torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from showattendtell.model import loops
from showattendtell.model.loops import Groups, compilable

FURTHEST = 43.0
"""The largest |p| and |q| of which e^-2p and e^-2q are numbers in single precision."""
TOGETHER = 2**19
"""The numbers of size B x L x A that torch computes at once on the processor, so that they stay in its cache."""


@dataclass(frozen=True)
class Keys:
    """p of images' regions (I, L, A), and e^-2p where the compiled loops take it."""

    sums: Tensor
    decays: Tensor | None

    @classmethod
    def of(cls, sums: Tensor) -> "Keys":
        return cls(sums, decay(sums.detach().contiguous()) if within_reach(sums) else None)

    def __getitem__(self, rows: Tensor) -> "Keys":
        return Keys(self.sums[rows], None if self.decays is None else self.decays[rows])


def within_reach(sums: Tensor) -> bool:
    """Whether the compiled loops take these p or q."""
    if not compilable(sums):
        return False
    least, most = sums.detach().aminmax()
    return float(least) >= -FURTHEST and float(most) <= FURTHEST


def decay(sums: Tensor) -> Tensor:
    """e^-2p."""
    return torch.exp(-2 * sums)


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
        if decays is None:
            return 2 * torch.cat([fit @ self.weights for _, fit in self._fits(queries)])
        scores = queries.new_empty(len(queries), self.keys.sums.shape[1])
        self.groups.run(loops.score, len(queries), *decays, self.weights, scores)
        return scores

    def scores_back(self, queries: Tensor, gradient: Tensor, to_sums: Tensor, to_weights: Tensor) -> Tensor:
        """q's gradient (b, A) from q and the scores' gradient (b, L).

        p's is added to `to_sums` (I, L, A), and u's, of which the sum over images is meant, to `to_weights` (I, A).
        """
        to_queries = queries.new_zeros(queries.shape)
        decays = self._decays(queries)
        if decays is not None:
            given = (*decays, self.weights, gradient.contiguous())
            self.groups.run(loops.score_back, len(queries), *given, to_sums, to_queries, to_weights)
            return to_queries
        for rows, fit in self._fits(queries):
            pulled = 2 * gradient[rows].unsqueeze(2) * fit  # (k, L, A)
            to_weights[0] += pulled.sum(dim=(0, 1))
            pulled *= 2 * self.weights * (1 - fit)
            to_sums.index_add_(0, self.groups.owners[rows], pulled)
            to_queries[rows] = pulled.sum(dim=1)
        return to_queries

    def _decays(self, queries: Tensor) -> tuple[Tensor, Tensor] | None:
        """e^-2p and e^-2q, where the compiled loops take them."""
        if self.keys.decays is None or not within_reach(queries):
            return None
        return self.keys.decays, decay(queries)

    def _fits(self, queries: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """sigmoid(2 (p + q)) of some captions at a time, (k, L, A)."""
        captions, sums = len(queries), self.keys.sums
        number = max(1, TOGETHER // sums[0].numel()) if queries.device.type == "cpu" else captions
        for first in range(0, captions, number):
            rows = slice(first, min(first + number, captions))
            yield rows, torch.sigmoid(2 * (sums[self.groups.owners[rows]] + queries[rows].unsqueeze(1)))


class AdditiveScores(torch.autograd.Function):
    """The scores of one step."""

    @staticmethod
    def forward(
        ctx: Any, groups: Groups, sums: Tensor, decays: Tensor | None, queries: Tensor, weights: Tensor
    ) -> Tensor:
        ctx.groups, ctx.decays = groups, decays
        ctx.save_for_backward(sums, queries, weights)
        return Pairs(groups, Keys(sums, decays), weights).scores(queries)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sums, queries, weights = ctx.saved_tensors
        to_sums, to_weights = sums.new_zeros(sums.shape), weights.new_zeros(len(sums), len(weights))
        pairs = Pairs(ctx.groups, Keys(sums, ctx.decays), weights)
        to_queries = pairs.scores_back(queries, gradient, to_sums, to_weights)
        return None, to_sums, None, to_queries, to_weights.sum(dim=0)
