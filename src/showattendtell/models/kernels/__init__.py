"""The fast path: hand-derived backward passes and loops compiled by numba.

The model calls `recurrence.unroll_fused` for all steps of given captions, `cross_entropy.cross_entropy` for their words
and `attention.AdditiveScores` for single steps. Tests hold them to the plain loop `recurrence.unroll` and to torch.
Here: mixed precision for custom autograd functions, products in the autocast's dtype and everything else in float32.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


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
