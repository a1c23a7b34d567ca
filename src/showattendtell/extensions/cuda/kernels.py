"""Triton's kernels in place of torch's operators, see `models.kernels.accelerator`. They import Triton."""

import logging
import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# a product and its sum are one instruction, as by default before Triton 3.10; unset, Triton 3.9 warns
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

MIN_CAPABILITY = (7, 0)
"""Compute capability from which on Triton supports a GPU."""


def supports(device: torch.device) -> bool:
    """Return whether Triton's kernels run on this device. With TRITON_INTERPRET=1 they run on the CPU, slowly, for
    tests."""
    if device.type != "cuda":
        return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        log.info("attention runs on torch's kernels: Triton needs compute capability %d.%d", *MIN_CAPABILITY)
        return False
    if find_spec("triton") is None:
        log.info("attention runs on torch's kernels, which are slower: Triton is not installed")
        return False
    return True


def unroll(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Compute all steps of given captions, see `GPURecurrence`."""
    from showattendtell.extensions.cuda.recurrence import GPURecurrence

    return GPURecurrence.apply(*arguments)


def cross_entropy(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute the loss and -log p of words, see `GPUCrossEntropy`."""
    from showattendtell.extensions.cuda.cross_entropy import GPUCrossEntropy

    return GPUCrossEntropy.apply(*arguments)


def score_and_read(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute alpha and the weighted sum of the regions of one step, see `recurrence.score_and_read`."""
    from showattendtell.extensions.cuda import recurrence

    return recurrence.score_and_read(*arguments)
