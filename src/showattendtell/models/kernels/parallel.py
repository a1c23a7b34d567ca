"""Loops over the captions and regions of each image, compiled by numba, with as many threads as torch uses.

All arrays are float32 and contiguous. Every loop works on the images `first` to `last`. The captions of image i are the
rows members[starts[i] : starts[i + 1]] (`CaptionGroups`), in ascending order, so that captions of an image use its
regions while they are in the processor's cache. Rows >= `count` have ended and are skipped.

E = e^-2p and F = e^-2q are the decays of `attention`, s = 1 / (1 + E F) = sigmoid(2 (p + q)).
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
PARTS = 4
"""Parts of a loop for each thread."""

HUGE = np.float32(1e9)
"""Upper bound of E F, so that a product of two such numbers is finite."""


def score(first, last, starts, members, count, keys, queries, weights, scores):  # type: ignore[no-untyped-def]
    """Write scores e (B, L) of the keys E (I, L, A), the queries F (B, A) and the weights u (A,):

        e = 2 sum_a u_a s_a = 2 sum_a u_a / (1 + E_a F_a)

    Divisions take most of the time, so two captions share one: u / x = u y / (x y) and u / y = u x / (x y).
    """
    width = keys.shape[2]
    for image in range(first, last):
        start, end = starts[image], starts[image + 1]
        while start < end and members[end - 1] >= count:
            end -= 1  # of ascending rows the ended ones are last
        for region in range(keys.shape[1]):
            for member in range(start, end - 1, 2):
                row, other = members[member], members[member + 1]
                total, other_total = ZERO, ZERO
                for a in range(width):
                    x = keys[image, region, a] * queries[row, a]
                    y = keys[image, region, a] * queries[other, a]
                    x = ONE + (HUGE if x > HUGE else x)  # not a number if x is none
                    y = ONE + (HUGE if y > HUGE else y)
                    reciprocal = weights[a] / (x * y)  # u / x = reciprocal y, u / y = reciprocal x
                    total += reciprocal * y
                    other_total += reciprocal * x
                scores[row, region] = TWO * total
                scores[other, region] = TWO * other_total
            if (end - start) % 2:  # the caption without a partner
                row, total = members[end - 1], ZERO
                for a in range(width):
                    total += weights[a] / (ONE + keys[image, region, a] * queries[row, a])
                scores[row, region] = TWO * total


def score_backward(  # type: ignore[no-untyped-def]
    first, last, starts, members, count, keys, queries, weights, gradient, grad_keys, grad_queries, grad_weights
):
    """Add du = 2 s de and dp = dq = 4 u s (1 - s) de to the gradients du (I, A), dp (I, L, A) and dq (B, A).

    Each image has its own row of du, so that threads never add to the same number.
    """
    for image in range(first, last):
        for region in range(keys.shape[1]):
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                doubled = TWO * gradient[row, region]
                for a in range(keys.shape[2]):
                    s = ONE / (ONE + keys[image, region, a] * queries[row, a])
                    grad = doubled * s  # du = 2 s de
                    grad_weights[image, a] += grad
                    grad *= TWO * weights[a] * (ONE - s)  # dp = dq = du * 2 u (1 - s)
                    grad_keys[image, region, a] += grad
                    grad_queries[row, a] += grad


def weighted_sum(first, last, starts, members, count, regions, maps, context):  # type: ignore[no-untyped-def]
    """Add sum_i m_i a_i of the regions a (I, L, D) and the maps m (B, L) to the context (B, D).

    Four regions at a time, so that the context is read and written a quarter as often; after the last region the weight
    is 0. Four zeros are skipped: the maps of hard attention are one-hot.
    """
    end = regions.shape[1] - 1
    for image in range(first, last):
        for h in range(0, end + 1, 4):
            i, j, k = min(h + 1, end), min(h + 2, end), min(h + 3, end)
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                a = maps[row, h]
                b = maps[row, i] if i > h else ZERO
                c = maps[row, j] if j > i else ZERO
                d = maps[row, k] if k > j else ZERO
                if a == ZERO and b == ZERO and c == ZERO and d == ZERO:
                    continue
                for channel in range(regions.shape[2]):
                    context[row, channel] += (
                        a * regions[image, h, channel]
                        + b * regions[image, i, channel]
                        + c * regions[image, j, channel]
                        + d * regions[image, k, channel]
                    )


def weighted_sum_backward(first, last, starts, members, count, regions, gradient, grad_maps):  # type: ignore[no-untyped-def]
    """Write the gradient of the maps (B, L), dm_i = a_i . dz, from that of the context (B, D)."""
    for image in range(first, last):
        for region in range(regions.shape[1]):
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                total = ZERO
                for d in range(regions.shape[2]):
                    total += gradient[row, d] * regions[image, region, d]
                grad_maps[row, region] = total


class CaptionGroups:
    """The captions of each image.

    Args:
        image_index: (B,) the image of each caption.
        num_images: I.
    """

    def __init__(self, image_index: Tensor, num_images: int):
        self.image_index, self._num_images = image_index, num_images

    @cached_property
    def _members(self) -> tuple[Tensor, Tensor]:
        """Return `starts` (I + 1,) and `members` (B,): image i has the captions members[starts[i] : starts[i + 1]]."""
        members = self.image_index.argsort(stable=True)
        return torch.searchsorted(self.image_index[members], torch.arange(self._num_images + 1)), members

    def layout(self, count: int) -> tuple[int, Tensor, Tensor, int]:
        """Return I, the starts, the members and `count`: the first arguments of the compiled loops over images."""
        return self._num_images, *self._members, count


def run_threaded(loops: Callable[..., None], size: int, *arguments: Tensor | int) -> None:
    """Run compiled loops from 0 to `size` in parts, of which a thread takes the next when it is done: on a busy machine
    one thread may be slower than the others."""
    kernel = compiled(loops)
    arrays = [part.detach().numpy() if isinstance(part, Tensor) else part for part in arguments]
    threads = max(1, min(torch.get_num_threads(), size))
    if threads == 1:
        kernel(0, size, *arrays)
        return
    parts = min(PARTS * threads, size)
    bounds = [size * part // parts for part in range(parts + 1)]
    for future in [_pool(os.getpid(), threads).submit(kernel, *pair, *arrays) for pair in pairwise(bounds)]:
        future.result()


_plain = ContextVar("plain", default=False)


@contextmanager
def plain_torch() -> Iterator[None]:
    """Turn off the compiled loops, for small tasks: the first compilation by numba takes seconds."""
    before = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(before)


def compilable(*tensors: Tensor) -> bool:
    """Return whether the compiled loops can be used: all tensors are float32 on the CPU, and not in `plain_torch`."""
    return not _plain.get() and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)


@cache
def compiled(loops: Callable[..., None]) -> Callable[..., None]:
    """Compile the loops with numba, which caches them on disk."""
    from numba import njit

    # fastmath without nnan and ninf: infinities occur, 1 / (1 + inf) must be 0
    settings: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    }
    try:
        return njit(cache=True, **settings)(loops)
    except RuntimeError:  # no writable cache folder
        return njit(**settings)(loops)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process; a forked process needs its own."""
    return ThreadPoolExecutor(threads, "loops")
