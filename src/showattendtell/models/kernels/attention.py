"""Additive scores e_i = u . tanh(p_i + q) of captions with their images' regions, and weighted sums z = sum_i m_i a_i.

On the CPU in float32 they are compiled loops (`parallel`), elsewhere plain torch. The loops of the scores replace tanh,
which is slow, by exponentials that are shared:

    tanh(p + q) = 2 s - 1,   s = sigmoid(2 (p + q)) = 1 / (1 + e^-2p e^-2q)

e^-2p is computed once per image and e^-2q once per step, which leaves a product and a reciprocal per element. No tensor
of size B x L x A is stored; the backward pass recomputes s. Where e^-2q would overflow, plain torch is used.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from showattendtell.models.kernels import parallel
from showattendtell.models.kernels.parallel import CaptionGroups, compilable, run_threaded

MAX_QUERY = 33.0
"""The largest |q| for which the loops are used; e^-2q and its product with e^-2p of any p are then right in float32.
Beyond |p| = 43 e^-2p is 0 or infinite, and s is 1 or 0; so is the sigmoid, because |p + q| >= 10."""


@dataclass(frozen=True)
class AdditiveKeys:
    """Keys of regions: p, (I, L, A)."""

    values: Tensor

    def __getitem__(self, rows: Tensor) -> "AdditiveKeys":
        return AdditiveKeys(self.values[rows])

    @cached_property
    def decays(self) -> Tensor | None:
        """The `decay` of the keys."""
        return decay(self.values)


def decay(values: Tensor) -> Tensor | None:
    """Return e^-2p, without a gradient; None if the compiled loops cannot be used."""
    return (-2 * values.detach()).exp_() if compilable(values) else None


class RegionPairs:
    """Scores of captions with all regions of their images. The methods take the first b of the B captions.

    The scores omit the constant -sum_a u_a of u . tanh(x) = 2 u . s - sum_a u_a, which does not change the softmax.

    Args:
        keys: p, (I, L, A).
        decays: their `decay`.
        weights: u, (A,).
    """

    def __init__(self, groups: CaptionGroups, keys: Tensor, decays: Tensor | None, weights: Tensor):
        self.groups, self.keys, self.decays, self.weights = groups, keys, decays, weights.contiguous()

    def scores(self, queries: Tensor) -> Tensor:
        """Return the scores e (b, L) of the queries q (b, A)."""
        decays = self._decays(queries)
        if decays is not None:
            scores = queries.new_empty(len(queries), self.keys.shape[1])
            run_threaded(parallel.score, *self.groups.layout(len(queries)), *decays, self.weights, scores)
            return scores
        return 2 * self._sigmoids(queries) @ self.weights

    def scores_backward(self, queries: Tensor, gradient: Tensor, grad_keys: Tensor, grad_weights: Tensor) -> Tensor:
        """Return dq (b, A) from de (b, L). Add dp to `grad_keys` (I, L, A) and du to `grad_weights` (I, A), which is
        still to be summed over images.

        From e = 2 sum_a u_a s_a and ds/dp = ds/dq = 2 s (1 - s) follow

            du = 2 s de     dp = dq = 4 u s (1 - s) de
        """
        decays = self._decays(queries)
        if decays is not None:
            grad_queries = queries.new_zeros(queries.shape)
            inputs, outputs = (*decays, self.weights, gradient.contiguous()), (grad_keys, grad_queries, grad_weights)
            run_threaded(parallel.score_backward, *self.groups.layout(len(queries)), *inputs, *outputs)
            return grad_queries
        s = self._sigmoids(queries)  # (b, L, A)
        grad_weights[0] += 2 * (gradient.flatten() @ s.flatten(0, 1))
        slope = torch.addcmul(s, s, s, value=-1).mul_(gradient.unsqueeze(2)).mul_(4 * self.weights)  # 4 u (s - s^2) de
        grad_keys.index_add_(0, self.groups.image_index[: len(queries)], slope)
        return slope.sum(dim=1)

    def _decays(self, queries: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return e^-2p and e^-2q; None if the compiled loops cannot be used."""
        if self.decays is None or not queries.abs().amax() <= MAX_QUERY:  # "not <=" also holds for NaN
            return None
        query_decays = decay(queries)
        return None if query_decays is None else (self.decays, query_decays)

    def _sigmoids(self, queries: Tensor) -> Tensor:
        """Return s = sigmoid(2 p + 2 q), (b, L, A)."""
        keys = self.keys[self.groups.image_index[: len(queries)]]
        return (2 * keys + 2 * queries.unsqueeze(1)).sigmoid_()


class AdditiveScores(torch.autograd.Function):
    """Additive scores of one step, as an autograd function."""

    @staticmethod
    def forward(
        ctx: Any, groups: CaptionGroups, keys: Tensor, decays: Tensor | None, queries: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the scores (B, L), without the constant, of the queries (B, A)."""
        ctx.groups = groups
        ctx.save_for_backward(keys, decays, queries, weights)
        return RegionPairs(groups, keys, decays, weights).scores(queries)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        keys, decays, queries, weights = ctx.saved_tensors
        grad_keys, grad_weights = torch.zeros_like(keys), keys.new_zeros(len(keys), keys.shape[2])
        pairs = RegionPairs(ctx.groups, keys, decays, weights)
        grad_queries = pairs.scores_backward(queries, gradient, grad_keys, grad_weights)
        return None, grad_keys, None, grad_queries, grad_weights.sum(dim=0)


def weighted_sum(groups: CaptionGroups, regions: Tensor, maps: Tensor) -> Tensor:
    """Return z = sum_i m_i a_i, (b, D), of the maps m (b, L) of the first b captions and the regions (I, L, D)."""
    if not compilable(regions):
        return (maps.unsqueeze(1) @ regions[groups.image_index[: len(maps)]]).squeeze(1)
    contexts = maps.new_zeros(len(maps), regions.shape[2])
    run_threaded(parallel.weighted_sum, *groups.layout(len(maps)), regions.contiguous(), maps.contiguous(), contexts)
    return contexts


def weighted_sum_backward(groups: CaptionGroups, regions: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the maps, dm_i = a_i . dz, (b, L), from dz (b, D)."""
    if not compilable(regions):
        return (regions[groups.image_index[: len(gradient)]] @ gradient.unsqueeze(2)).squeeze(2)
    grad_maps = gradient.new_empty(len(gradient), regions.shape[1])
    layout = groups.layout(len(gradient))
    run_threaded(parallel.weighted_sum_backward, *layout, regions.contiguous(), gradient.contiguous(), grad_maps)
    return grad_maps
