"""The fast path: hand-derived backward passes, and loops compiled by numba.

    recurrence     `unroll`, the plain loop over the steps of given captions, and `unroll_fused`, its fast version
    attention      additive scores and weighted sums of regions
    cross_entropy  cross-entropy, log-sum-exp and top-k of the words' scores
    mixture        word probabilities that are mixtures over regions
    products       float32 matrix products by MKL or oneDNN
    packing        captions without padding
    parallel       the compiled loops over images, and threads

Read `recurrence.unroll` first: it is the model. Tests compare all others with it and with torch. Autograd functions
here handle mixed precision themselves, with the functions of this module: products in the autocast's dtype, everything
else in float32.
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
