"""Mixed precision for functions with a backward pass of their own: products in the autocast's, all else in single."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """What an autocast, where one is on, multiplies in."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def to_multiply(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors as an autocast would multiply them."""
    dtype = autocast_dtype(tensors[0].device)
    return tensors if dtype is None else tuple(tensor.to(dtype) for tensor in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Where every product is in the precision of what is multiplied."""
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)
