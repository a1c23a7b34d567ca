"""The fast path: hand-derived backward passes, and loops compiled by numba.

    recurrence     `unroll_fused`, the fast version of `RecurrentDecoder.unroll`, the plain loop over the steps
    attention      additive scores and weighted sums of regions
    cross_entropy  cross-entropy of the words' scores
    products       float32 matrix products by MKL or oneDNN
    parallel       the compiled loops over images, and threads

Kernels for GPUs are those of an extension, which adds itself to `registered`, see `accelerator`.

Read `RecurrentDecoder.unroll` first: it is the model. Tests compare all others with it and with torch. Autograd
functions here handle mixed precision themselves, with the functions of this module: products in the autocast's dtype,
everything else in float32.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from showattendtell import extensions

registered: dict[str, str] = {}
"""Import paths of modules that replace parts of the core on devices for which their `supports` is true: `kernels`, and
`steps` of training."""


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


@cache
def device_module(name: str, device: torch.device) -> Any:
    """Return the module that is registered as `name`, None without one that supports the device."""
    extensions.register()
    module: Any = import_module(registered[name]) if name in registered else None
    return module if module and module.supports(device) else None


def accelerator(values: Tensor) -> Any:
    """Return the registered `kernels` that compute with tensors like this one, None without any.

    Its functions take the place of operators: `unroll`, `cross_entropy` and `score_and_read`, whose arguments are those
    of their calls.
    """
    if values.dtype == torch.float64 or torch.compiler.is_compiling():
        return None
    return device_module("kernels", values.device)
