"""Matrix products in float32 on the CPU, by the faster of the two libraries in torch.

torch multiplies float32 matrices with a BLAS library, usually MKL, and calls oneDNN only for other precisions. On AMD's
processors oneDNN is more than twice as fast (docs/performance.md), so it is used there. The environment variable
`SHOWATTENDTELL_MATMUL` (torch or onednn) sets the library. Both compute in float32, but round differently: runs are
reproducible bit for bit only with the same one.
"""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.models.kernels import autocast_dtype

MATMUL = "SHOWATTENDTELL_MATMUL"
"""Environment variable with the library to use."""

LIBRARIES = ("torch", "onednn")

MIN_MULTIPLICATIONS = 1 << 21
"""Smaller products, and those of a single row, are left to torch: oneDNN takes longer to start, and 1 ms for the first
product of each size."""


@cache
def library() -> str:
    """Return the library of this process.

    Raises:
        UserError: `SHOWATTENDTELL_MATMUL` is neither torch nor onednn.
    """
    if given := os.environ.get(MATMUL):
        if given not in LIBRARIES:
            raise UserError(f"{MATMUL}={given} is not one of {', '.join(LIBRARIES)}")
        return given
    return "onednn" if torch.backends.mkldnn.is_available() and "AMD" in processor_model() else "torch"


def processor_model() -> str:
    """Return the processor's name in Linux, or else in Python."""
    described = Path("/proc/cpuinfo")
    for line in described.read_text().splitlines() if described.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def linear(inputs: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W x + b of inputs x (..., k), the matrix W (w, k) and the bias b (w,): `F.linear` with either library.

    Differentiable once.
    """
    if not _is_supported(inputs, matrix) or library() == "torch":
        return F.linear(inputs, matrix, bias)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (inputs, matrix, bias)):
        return _Linear.apply(inputs.flatten(0, -2), matrix, bias).view(*inputs.shape[:-1], len(matrix))
    return _onednn(inputs, matrix, bias)


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of matrices (..., m, k) and (k, n), (..., m, n): `torch.matmul` with either library."""
    return linear(first, second.T)


def _is_supported(inputs: Tensor, matrix: Tensor) -> bool:
    """Return whether oneDNN can compute the product, and may be faster."""
    return (
        not torch.compiler.is_compiling()  # nor exporting
        and inputs.device.type == "cpu"
        and inputs.dtype == matrix.dtype == torch.float32
        and inputs.numel() > inputs.shape[-1]
        and inputs.numel() * len(matrix) >= MIN_MULTIPLICATIONS
        and autocast_dtype(inputs.device) is None
    )


def _onednn(inputs: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, matrix, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """oneDNN's product, for which torch has no gradient: dx = W^T dy, dW = sum dy x^T, db = sum dy."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, matrix)
        return _onednn(inputs, matrix, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, matrix = ctx.saved_tensors  # (N, k), (w, k)
        wants_inputs, wants_matrix, wants_bias = ctx.needs_input_grad
        return (
            matmul(gradient, matrix) if wants_inputs else None,
            matmul(gradient.T, inputs) if wants_matrix else None,
            gradient.sum(dim=0) if wants_bias else None,
        )


class Linear(nn.Linear):
    """`torch.nn.Linear` with the product of `linear`."""

    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight, self.bias)


def replace_linear_layers(network: nn.Module) -> None:
    """Replace every `torch.nn.Linear` of a network by a `Linear` with the same weights."""
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear:
                replacement = Linear(layer.in_features, layer.out_features, device="meta")
                replacement.weight, replacement.bias = layer.weight, layer.bias
                setattr(parent, name, replacement.train(layer.training))
