"""The cross-entropy of `models.kernels.cross_entropy` on a GPU: one kernel forward and one backward, which reads and
writes the scores once. The gradient takes the place of the scores, so that (N, V) is stored once, in the precision of
the products.
"""
# ruff: noqa: N803

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 2048
"""Words of a row that are read at once."""


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    scores, targets, losses, nlls, normalizers, num_words, smoothing, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the loss, -log p and log Z of one row of scores.

    loss = log Z - (1 - a) s_w - a mean_v s_v = -log p + a (s_w - mean_v s_v)
    """
    row = tl.program_id(0).to(tl.int64)
    first = scores + row * num_words
    largest, total, sum_scores = -1e38, 0.0, 0.0
    for start in range(0, num_words, WIDTH):
        v = start + tl.arange(0, WIDTH)
        s = tl.load(first + v, mask=v < num_words, other=-float("inf")).to(tl.float32)
        before = largest
        largest = tl.maximum(before, tl.max(s, axis=0))
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(s - largest), axis=0)
        sum_scores += tl.sum(tl.where(v < num_words, s, 0.0), axis=0)
    normalizer = largest + tl.log(total)
    target_score = tl.load(first + tl.load(targets + row)).to(tl.float32)
    nll = normalizer - target_score
    loss = nll
    if smoothing > 0:
        loss += smoothing * (target_score - sum_scores / num_words)
    tl.store(losses + row, loss)
    tl.store(nlls + row, nll)
    tl.store(normalizers + row, normalizer)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    scores, targets, normalizers, gradients, num_words, smoothing, WIDTH: tl.constexpr
):  # fmt: skip
    """Replace the scores of one row by their gradient: ds_v = (p_v - (1 - a) [v = w] - a / V) dloss."""
    row = tl.program_id(0).to(tl.int64)
    first = scores + row * num_words
    target, normalizer, gradient = tl.load(targets + row), tl.load(normalizers + row), tl.load(gradients + row)
    for start in range(0, num_words, WIDTH):
        v = start + tl.arange(0, WIDTH)
        s = tl.load(first + v, mask=v < num_words, other=-float("inf")).to(tl.float32)
        grad = tl.exp(s - normalizer) - smoothing / num_words - tl.where(v == target, 1.0 - smoothing, 0.0)
        tl.store(first + v, (grad * gradient).to(scores.dtype.element_ty), mask=v < num_words)


class GPUCrossEntropy(torch.autograd.Function):
    """`cross_entropy._CrossEntropy` with the kernels of this module."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, matrix: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and -log p of the targets, (N,) each, from the inputs x (N, w), W (V, w) and b (V,)."""
        scores = torch.addmm(bias, values, matrix.T)  # (N, V)
        losses, nlls, normalizers = torch.empty(3, len(scores), dtype=torch.float32, device=scores.device).unbind()
        arguments = (len(matrix), float(label_smoothing))
        forward_kernel[(len(scores),)](scores, targets, losses, nlls, normalizers, *arguments, WIDTH=WIDTH, num_warps=8)
        ctx.save_for_backward(values, matrix, scores, targets, normalizers)
        ctx.arguments = arguments
        ctx.mark_non_differentiable(nlls)
        return losses, nlls

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        values, matrix, scores, targets, normalizers = ctx.saved_tensors
        rows, gradient = (len(scores),), gradient.float().contiguous()
        backward_kernel[rows](scores, targets, normalizers, gradient, *ctx.arguments, WIDTH=WIDTH, num_warps=8)
        grad_bias = scores.sum(dim=0, dtype=torch.float32).to(matrix.dtype)
        return scores @ matrix, scores.T @ values, grad_bias, None, None
