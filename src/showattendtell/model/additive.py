"""The sum of tanh over all regions and captions of an image, without keeping the tanh.

tanh(p + q) = 2 / (1 + e^-2p e^-2q) - 1: one exponential an image and one a step are left, and in between a product and
a reciprocal, which the backward pass computes again instead of storing (R, K, L, A) numbers a step. On the processor
both passes are loops compiled by numba, in as many threads as torch has.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

FURTHEST = 40.0
"""p and q beyond it are taken for it, so that their exponentials are numbers: tanh(p + q) stays exact, unless both are
so large and of opposite signs."""


ONE, ZERO = np.float32(1), np.float32(0)


def decay(sums: Tensor) -> Tensor:
    """e^-2p."""
    return torch.exp(-2 * sums.clamp(-FURTHEST, FURTHEST))


def sum_of_tanh(keys: Tensor, queries: Tensor, weights: Tensor) -> Tensor:
    """u . tanh(p_i + q) for every region i and caption, (R, K, L).

    Args:
        keys: e^-2p of the regions, (R, L, A).
        queries: e^-2q of the captions, (R, K, A).
        weights: u, (A,).
    """
    if keys.device.type == "cpu" and keys.dtype == queries.dtype == weights.dtype == torch.float32:
        halves = _SumOfSigmoid.apply(keys, queries, weights)
    else:
        halves = (1 + keys.unsqueeze(1) * queries.unsqueeze(2)).reciprocal() @ weights
    return 2 * halves - weights.sum()


class _SumOfSigmoid(torch.autograd.Function):
    """s_kl = sum_a u_a / (1 + E_la F_ka), for each image."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, queries: Tensor, weights: Tensor) -> Tensor:
        keys, queries, weights = keys.contiguous(), queries.contiguous(), weights.contiguous()
        ctx.save_for_backward(keys, queries, weights)
        sums = keys.new_empty(*queries.shape[:2], keys.shape[1])
        _share_out(kernels()[0], [keys, queries, sums], [weights])
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, queries, weights = ctx.saved_tensors
        by_image = [torch.zeros_like(keys), torch.zeros_like(queries), keys.new_zeros(len(keys), len(weights))]
        _share_out(kernels()[1], [keys, queries, gradient.contiguous(), *by_image], [weights])
        return by_image[0], by_image[1], by_image[2].sum(dim=0)


@cache
def kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    """The loops over the images of a share, forward and backward; numba keeps them compiled on disk."""
    return _compile(_sum), _compile(_spread)


def _compile(loops: Callable[..., None]) -> Callable[..., None]:
    from numba import njit

    # all of fastmath but what takes infinity for impossible: 1 / (1 + inf) is 0 here
    settings: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    }
    try:
        return njit(cache=True, **settings)(loops)
    except RuntimeError:  # there is no place that it may write to
        return njit(**settings)(loops)


def _sum(keys, queries, sums, weights):  # type: ignore[no-untyped-def]
    images, regions, width = keys.shape
    for image in range(images):
        for caption in range(queries.shape[1]):
            for region in range(regions):
                total = ZERO
                for a in range(width):
                    total += weights[a] / (ONE + keys[image, region, a] * queries[image, caption, a])
                sums[image, caption, region] = total


def _spread(keys, queries, gradient, to_keys, to_queries, to_weights, weights):  # type: ignore[no-untyped-def]
    images, regions, width = keys.shape
    for image in range(images):
        for region in range(regions):
            for caption in range(queries.shape[1]):
                given = gradient[image, caption, region]
                for a in range(width):
                    key, query = keys[image, region, a], queries[image, caption, a]
                    fit = ONE / (ONE + key * query)
                    pulled = given * fit
                    to_weights[image, a] += pulled
                    pulled *= weights[a] * fit
                    to_keys[image, region, a] -= pulled * query
                    to_queries[image, caption, a] -= pulled * key


def _share_out(kernel: Callable[..., None], by_image: list[Tensor], shared: list[Tensor]) -> None:
    """Call the kernel on each thread's share of the images."""
    threads = min(torch.get_num_threads(), len(by_image[0]))
    whole = [tensor.detach().numpy() for tensor in shared]
    shares = list(zip(*(tensor.detach().tensor_split(threads) for tensor in by_image), strict=True))
    calls = [([part.numpy() for part in share], whole) for share in shares]
    if threads == 1:
        kernel(*calls[0][0], *calls[0][1])
        return
    for done in [_pool(os.getpid()).submit(kernel, *parts, *rest) for parts, rest in calls]:
        done.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked one has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "additive")
