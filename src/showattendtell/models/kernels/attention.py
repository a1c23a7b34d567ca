"""Additive scores e_i = u . tanh(p_i + q) of captions with their images' regions; weighted sums z = sum_i m_i a_i.

On the CPU in float32 they are compiled loops, elsewhere plain torch. The scores' loops use tanh(p + q) =
2 / (1 + e^-2p e^-2q) - 1: e^-2p is computed once per image and e^-2q once per step, which leaves a product and a
reciprocal per element. No tensor of size B x L x A is stored; the backward pass recomputes the reciprocals. If |q| is
out of reach, plain torch is used.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from showattendtell.models.kernels import parallel
from showattendtell.models.kernels.parallel import CaptionGroups, compilable, share_out

FURTHEST = 43.0
"""The largest |p| and |q| for which e^-2p and e^-2q are finite and not 0 in float32."""

SATURATED = 10.0
"""For x >= SATURATED, tanh(x) = 1 in float32."""


@dataclass(frozen=True)
class AdditiveKeys:
    """Keys of regions (I, L, A): p, or e^-2p (`decayed`) if all queries are known to be within reach."""

    values: Tensor
    decayed: bool = False

    def __getitem__(self, rows: Tensor) -> "AdditiveKeys":
        return AdditiveKeys(self.values[rows], self.decayed)

    @cached_property
    def decays(self) -> Tensor | None:
        """e^-2p; None if the compiled loops cannot be used."""
        if self.decayed:
            return self.values
        return decay(self.values.detach()) if compilable(self.values) else None

    @cached_property
    def reach(self) -> float:
        """The largest |q| for which `decays` give correct scores. If e^-2p is 0 or infinite, tanh(p + q) must be 1 or
        -1 for all such q.
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
    """Return e^-2p."""
    return (-2 * sums).exp_()


class RegionPairs:
    """Scores of all captions with all regions of their images. The methods take the first b of the B captions.

    The scores omit the constant -sum_a u_a, which does not change the softmax.

    Args:
        weights: u, (A,).
    """

    def __init__(self, groups: CaptionGroups, keys: AdditiveKeys, weights: Tensor):
        self.groups, self.keys, self.weights = groups, keys, weights.contiguous()
        self._strayed = False

    def kept(self) -> AdditiveKeys:
        """Return the keys that the backward pass needs for all scores computed so far."""
        decays = self.keys.decays
        return self.keys if self._strayed or decays is None else AdditiveKeys(decays, decayed=True)

    def scores(self, queries: Tensor) -> Tensor:
        """Return the scores e (b, L) of the queries q (b, A)."""
        decays = self._decays(queries)
        scores = queries.new_empty(len(queries), self.keys.values.shape[1])
        if decays is not None:
            share_out(parallel.score, *self.groups.layout(len(queries)), *decays, self.weights, scores)
            return scores
        self._strayed = True
        for images, rows in self.groups.pieces(len(queries)):
            # u . tanh(x) = 2 u . sigmoid(2 x) - sum_a u_a, of which the constant is left out
            scores[rows] = 2 * self._fit(images, queries[rows]) @ self.weights
        return scores

    def scores_back(self, queries: Tensor, gradient: Tensor, to_sums: Tensor, to_weights: Tensor) -> Tensor:
        """Return dq (b, A) from de (b, L). With s = sigmoid(2 (p + q)): e = 2 u . s, de/dp = de/dq = 4 u s (1 - s).

        Add dp to `to_sums` (I, L, A), and du = 2 s de to `to_weights` (I, A), still to be summed over images.
        """
        to_queries = queries.new_zeros(queries.shape)
        decays = self._decays(queries)
        if decays is not None:
            inputs, sums = (*decays, self.weights, gradient.contiguous()), (to_sums, to_queries, to_weights)
            share_out(parallel.score_back, *self.groups.layout(len(queries)), *inputs, *sums)
            return to_queries
        for images, rows in self.groups.pieces(len(queries)):
            fit, given = self._fit(images, queries[rows]), gradient[rows]  # (k, L, A), (k, L)
            to_weights[0] += 2 * (given.flatten() @ fit.flatten(0, 1))
            # de/dp = 4 u s (1 - s) = 4 u (s - s^2)
            slope = torch.addcmul(fit, fit, fit, value=-1).mul_(given.unsqueeze(2))
            to_queries[rows] = 4 * self.weights * slope.sum(dim=1)
            if isinstance(images, slice):  # the captions of one image
                to_sums[images] += 4 * self.weights * slope.sum(dim=0)
            else:
                to_sums.index_add_(0, images, 4 * self.weights * slope)
        return to_queries

    def _decays(self, queries: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return e^-2p and e^-2q; None if the compiled loops cannot be used."""
        if self.keys.decays is None or not compilable(queries) or not _furthest(queries) <= self.keys.reach:
            return None
        return self.keys.decays, decay(queries)

    def _fit(self, images: slice | Tensor, queries: Tensor) -> Tensor:
        """Return s = sigmoid(2 (p + q)), (k, L, A)."""
        return (self._doubled[images] + 2 * queries.unsqueeze(1)).sigmoid_()

    @cached_property
    def _doubled(self) -> Tensor:
        # 2 p, from log e^-2p if only that was kept
        return -self.keys.values.log() if self.keys.decayed else 2 * self.keys.values


class AdditiveScores(torch.autograd.Function):
    """Additive scores of one step, as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any, groups: CaptionGroups, keys: AdditiveKeys, sums: Tensor, queries: Tensor, weights: Tensor
    ) -> Tensor:
        """Args:
        sums: p, the tensor inside `keys` that receives the gradient.
        """
        pairs = RegionPairs(groups, keys, weights)
        scores, kept = pairs.scores(queries), pairs.kept()
        ctx.groups, ctx.decayed = groups, kept.decayed
        ctx.save_for_backward(kept.values, queries, weights)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, queries, weights = ctx.saved_tensors
        to_sums, to_weights = values.new_zeros(values.shape), weights.new_zeros(len(values), len(weights))
        pairs = RegionPairs(ctx.groups, AdditiveKeys(values, ctx.decayed), weights)
        to_queries = pairs.scores_back(queries, gradient, to_sums, to_weights)
        return None, None, to_sums, to_queries, to_weights.sum(dim=0)


class WeightedSum:
    """Weighted sums z = sum_i m_i a_i for B captions. The methods take the first b captions.

    Args:
        regions: (I, L, D).
    """

    def __init__(self, groups: CaptionGroups, regions: Tensor):
        self.groups, self.regions = groups, regions.contiguous()
        self._compiled = compilable(regions)

    def read(self, maps: Tensor) -> Tensor:
        """Return z (b, D) of m (b, L)."""
        contexts = maps.new_zeros(len(maps), self.regions.shape[2])
        if self._compiled:
            share_out(parallel.read, *self.groups.layout(len(maps)), self.regions, maps.contiguous(), contexts)
            return contexts
        for images, rows in self.groups.pieces(len(maps)):
            contexts[rows] = _by_image(maps[rows], self.regions[images])
        return contexts

    def read_back(self, gradient: Tensor) -> Tensor:
        """Return dm (b, L) from dz (b, D): dm_i = a_i . dz."""
        to_maps = gradient.new_empty(len(gradient), self.regions.shape[1])
        if self._compiled:
            share_out(
                parallel.read_back, *self.groups.layout(len(gradient)), self.regions, gradient.contiguous(), to_maps
            )
            return to_maps
        for images, rows in self.groups.pieces(len(gradient)):
            to_maps[rows] = _by_image(gradient[rows], self.regions[images].mT)
        return to_maps


def _by_image(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return x M of every row x (k, p), with one matrix M (1, p, q) for all rows or one per row (k, p, q)."""
    return rows @ matrices[0] if len(matrices) == 1 else (rows.unsqueeze(1) @ matrices).squeeze(1)
