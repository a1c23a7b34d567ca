"""A trace by hand."""

import torch
from torch import Tensor

from showattendtell.records import Trace


def trace_of(logits: Tensor, weights: Tensor, gates: Tensor) -> Trace:
    """From logits (B, T, V) of all steps."""
    return Trace(logits.flatten(0, 1), torch.arange(logits.shape[0] * logits.shape[1]), weights, gates)
