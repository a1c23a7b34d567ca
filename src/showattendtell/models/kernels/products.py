"""Matrix products in float32 on the CPU, by the faster of the two libraries in torch.

torch multiplies float32 matrices with a BLAS library, usually MKL, and calls oneDNN only for other precisions. On some
processors, such as AMD's, oneDNN is more than twice as fast. The first product on a machine compares them, which takes
about 10 ms, and `matmul.json` in the cache folder keeps the choice for later processes; the environment variable
`SHOWATTENDTELL_MATMUL` (torch or onednn) fixes it. Both libraries compute in float32, but round differently: runs are
reproducible bit for bit only with the same choice.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.models.kernels import autocast_dtype
from showattendtell.runtime.files import atomic_write, cache_folder

Library = Literal["torch", "onednn"]

MATMUL = "SHOWATTENDTELL_MATMUL"
"""Environment variable with the library to use."""

GAIN = 1.3
"""oneDNN is used where it is so many times as fast: smaller differences may be noise."""

CHOICES = "matmul.json"
"""File in the cache folder with the library for each processor model, torch version and number of threads."""

MIN_MULTIPLICATIONS = 1 << 21
"""Smaller products, and those of a single row, are left to torch: oneDNN takes longer to start, and 1 ms for the first
product of each size."""


@cache
def library() -> Library:
    """Return the library of this process.

    Raises:
        UserError: `SHOWATTENDTELL_MATMUL` is neither torch nor onednn.
    """
    given = os.environ.get(MATMUL)
    if given:
        if given not in get_args(Library):
            raise UserError(f"{MATMUL}={given} is not one of {', '.join(get_args(Library))}")
        return cast(Library, given)
    return _faster_library() if torch.backends.mkldnn.is_available() else "torch"


def _faster_library() -> Library:
    """Return the stored library for this processor, torch and number of threads; time and store it if it is missing.

    If two processes store at once, one entry may be lost, and is timed again later.
    """
    key = f"{processor_model()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    choices: dict[str, Library] = {}
    with suppress(OSError, UserError, ValueError):  # no file, no home folder, a damaged file
        choices = TypeAdapter(dict[str, Library]).validate_json((cache_folder() / CHOICES).read_bytes())
    if key not in choices:
        choices[key] = "onednn" if onednn_gain() > GAIN else "torch"
        with suppress(OSError, UserError):  # a read-only folder, no home folder
            cache_folder().mkdir(parents=True, exist_ok=True)
            with atomic_write(cache_folder() / CHOICES) as stream:
                stream.write(json.dumps(choices, indent=2).encode())
    return choices[key]


def processor_model() -> str:
    """Return the processor's name in Linux, or else in Python."""
    described = Path("/proc/cpuinfo")
    for line in described.read_text().splitlines() if described.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def onednn_gain(rows: int = 64, inputs: int = 512, outputs: int = 2048) -> float:
    """Return how many times as fast as torch oneDNN multiplies matrices of this size."""
    matrices = torch.ones(rows, inputs), torch.ones(outputs, inputs)

    def seconds(multiply: Callable[..., Tensor]) -> float:
        start = time.perf_counter()
        multiply(*matrices)
        return time.perf_counter() - start

    with torch.no_grad():
        times = [(seconds(F.linear), seconds(_onednn)) for _ in range(5)]
    ours, theirs = (min(each) for each in zip(*times, strict=True))
    return ours / theirs


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
    """Make every `torch.nn.Linear` of a network a `Linear` of the same weights."""
    for layer in network.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Linear
