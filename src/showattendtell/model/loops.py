"""Loops over the captions of an image and over its regions, compiled by numba, in as many threads as torch has.

All arrays are float32 and contiguous. The captions of image i are the rows members[starts[i] : starts[i + 1]] in
ascending order; those from `count` on take no part.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)


def score(first, last, starts, members, count, keys, queries, weights, scores):  # type: ignore[no-untyped-def]
    """scores (B, L): 2 sum_a u_a / (1 + E_a F_a) of keys E (I, L, A), queries F (B, A) and weights u (A,)."""
    for image in range(first, last):
        for region in range(keys.shape[1]):
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                total = ZERO
                for a in range(keys.shape[2]):
                    total += weights[a] / (ONE + keys[image, region, a] * queries[row, a])
                scores[row, region] = TWO * total


def score_back(  # type: ignore[no-untyped-def]
    first, last, starts, members, count, keys, queries, weights, gradient, to_keys, to_queries, to_weights
):
    """Adds to p's (I, L, A) and to u's gradient (I, A), and to q's (B, A), where E = e^-2p and F = e^-2q."""
    for image in range(first, last):
        for region in range(keys.shape[1]):
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                given = TWO * gradient[row, region]
                for a in range(keys.shape[2]):
                    fit = ONE / (ONE + keys[image, region, a] * queries[row, a])
                    pulled = given * fit
                    to_weights[image, a] += pulled
                    pulled *= TWO * weights[a] * (ONE - fit)
                    to_keys[image, region, a] += pulled
                    to_queries[row, a] += pulled


def read(first, last, starts, members, count, regions, maps, context):  # type: ignore[no-untyped-def]
    """Adds the regions (I, L, D) under each map (B, L) to the context (B, D)."""
    for image in range(first, last):
        for region in range(regions.shape[1]):
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                weight = maps[row, region]
                if weight != ZERO:
                    for d in range(regions.shape[2]):
                        context[row, d] += weight * regions[image, region, d]


def read_back(first, last, starts, members, count, regions, gradient, to_maps):  # type: ignore[no-untyped-def]
    """The maps' gradient (B, L) from the context's (B, D)."""
    for image in range(first, last):
        for region in range(regions.shape[1]):
            for member in range(starts[image], starts[image + 1]):
                row = members[member]
                if row >= count:
                    break
                total = ZERO
                for d in range(regions.shape[2]):
                    total += gradient[row, d] * regions[image, region, d]
                to_maps[row, region] = total


class Groups:
    """The captions of each image.

    Args:
        owners: (B,) the image of each caption.
        images: I.
    """

    def __init__(self, owners: Tensor, images: int):
        self.owners, self._images = owners, images

    @cached_property
    def _members(self) -> tuple[Tensor, Tensor]:
        """Where each image's captions start, and the captions."""
        starts = torch.cat([self.owners.new_zeros(1), self.owners.bincount(minlength=self._images).cumsum(0)])
        return starts, self.owners.argsort(stable=True)

    def pieces(self, count: int) -> Iterator[tuple[slice | Tensor, slice | Tensor]]:
        """The first `count` captions as plain torch takes them: images and, in step with them, the rows of captions.

        On the processor an image and its captions, which share its place in the cache; elsewhere all at once, each
        with its own image.
        """
        if self.owners.device.type != "cpu":
            yield self.owners[:count], slice(0, count)
            return
        starts, members = self._members
        for image, rows in enumerate(members.tensor_split(starts[1:-1])):
            if len(rows := rows[rows < count]):
                yield slice(image, image + 1), rows

    def run(self, loops: Callable[..., None], count: int, *tensors: Tensor) -> None:
        """Run the loops over all images with the first `count` captions, each thread's share of them at once."""
        arrays = [tensor.detach().numpy() for tensor in tensors]
        threads = min(torch.get_num_threads(), self._images)
        bounds = [self._images * thread // threads for thread in range(threads + 1)]
        kernel, members = compiled(loops), [part.numpy() for part in self._members]

        def share(first: int, last: int) -> None:
            kernel(first, last, *members, count, *arrays)

        if threads == 1:
            share(*bounds)
            return
        for done in [_pool(os.getpid()).submit(share, *pair) for pair in pairwise(bounds)]:
            done.result()


def compilable(*tensors: Tensor) -> bool:
    """Whether the loops take these tensors."""
    return all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)


@cache
def compiled(loops: Callable[..., None]) -> Callable[..., None]:
    """The loops as machine code, which numba keeps on disk."""
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


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked one has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), "loops")
