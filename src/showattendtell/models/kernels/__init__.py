"""The fast path: hand-derived backward passes, and loops compiled by numba.

    recurrence     `unroll_fused`, the fast version of `RecurrentDecoder.unroll`, the plain loop over the steps
    gpu_*          the same with Triton's kernels
    attention      additive scores and weighted sums of regions
    cross_entropy  cross-entropy and log-sum-exp of the words' scores
    products       float32 matrix products by MKL or oneDNN
    parallel       the compiled loops over images, and threads

Read `RecurrentDecoder.unroll` first: it is the model. Tests compare all others with it and with torch. Autograd
functions here handle mixed precision themselves, with the functions of this module: products in the autocast's dtype,
everything else in float32.
"""

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

log = logging.getLogger(__name__)

MIN_CAPABILITY = (7, 0)
"""Compute capability from which on Triton supports a GPU."""


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype of the active autocast, None without one."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def to_multiply(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast the tensors to the dtype of the active autocast, if any."""
    dtype = autocast_dtype(tensors[0].device)
    return tensors if dtype is None else tuple(tensor.to(dtype) for tensor in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast: products use the dtype of their operands."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def runs_triton(values: Tensor) -> bool:
    """Return whether Triton's kernels can compute with tensors like this one.

    With TRITON_INTERPRET=1 Triton runs them on the CPU, slowly, for tests.
    """
    return values.dtype != torch.float64 and not torch.compiler.is_compiling() and _runs_triton(values.device)


@cache
def _runs_triton(device: torch.device) -> bool:
    if device.type != "cuda":
        return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        log.info("attention runs on torch's kernels: Triton needs compute capability %d.%d", *MIN_CAPABILITY)
        return False
    if find_spec("triton") is None:
        log.info("attention runs on torch's kernels, which are slower: Triton is not installed")
        return False
    return True
