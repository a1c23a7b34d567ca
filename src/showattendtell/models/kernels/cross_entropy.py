"""Cross-entropy of the scores s (logits) of all words.

The cross-entropy of the word w is -log p(w) = log Z - s_w with the normalizer log Z = log sum_v e^s_v. No exponential
overflows, because the largest score m is subtracted first: log Z = m + log sum_v e^(s_v - m).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from showattendtell.models.kernels import accelerator, to_multiply, without_autocast
from showattendtell.models.kernels.products import linear, matmul

CHUNK_SCORES = {"cpu": 2**21}
"""The number of scores that are processed at once, 2^21 (8 MB) on the CPU because of its caches; 2^27 elsewhere."""


class CrossEntropy(NamedTuple):
    """Cross-entropy of the target words, (N,) each.

    loss  against a target of 1 - s on the word plus s / V on every word, s the label smoothing; differentiable
    nll   -log p of the word, without a gradient, for logging
    """

    loss: Tensor
    nll: Tensor


class OutputFeatures(NamedTuple):
    """Inputs of the output layer for N words: the logits are W x + b with x (N, w), W (V, w) and b (V,).

    The loss takes these instead of the logits (N, V), which are the largest tensor of a training step.
    """

    values: Tensor
    matrix: Tensor
    bias: Tensor

    def without(self, tokens: tuple[int, ...]) -> "OutputFeatures":
        """Return the inputs with p = 0 for these tokens."""
        bias = self.bias.clone()
        bias[list(tokens)] = -math.inf
        return self._replace(bias=bias)

    def cross_entropy(self, targets: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
        """Return the cross-entropy of the words `targets` (N,).

        It is faster than torch's and needs less memory: one tensor (N, V), first of the scores, then of the
        probabilities. The gradient of the scores is computed for some words at a time.
        """
        operands = to_multiply(*self)
        kernels = accelerator(operands[0])
        compute: Any = _CrossEntropy.apply if kernels is None else kernels.cross_entropy
        with without_autocast(targets.device):
            return CrossEntropy(*compute(*operands, targets, label_smoothing))

    def logits(self) -> Tensor:
        """Return the logits of the words, (N, V)."""
        return self.values @ self.matrix.T + self.bias


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy of the output layer s = W x + b.

    With label smoothing a, the loss is -sum_v t_v log p_v with targets t_v = (1 - a) [v = w] + a / V:

        loss = log Z - (1 - a) s_w - a mean_v s_v     dloss/ds_v = p_v - (1 - a) [v = w] - a / V
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, matrix: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and -log p of the targets, (N,) each, from the inputs x (N, w), W (V, w) and b (V,)."""
        scores = linear(values, matrix, bias)  # (N, V)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        largest = scores.amax(dim=1, keepdim=True).to(dtype)
        target_scores = scores.gather(1, targets.unsqueeze(1))  # s_w, (N, 1)
        mean = scores.mean(dim=1, keepdim=True, dtype=dtype) if label_smoothing else None  # mean_v s_v
        total = torch.empty_like(largest)  # Z / e^m
        for rows in _slices(len(scores), len(matrix), scores.device):
            exp_scores = (scores[rows] - largest[rows]).exp_()
            total[rows] = exp_scores.sum(dim=1, keepdim=True)
            torch.div(exp_scores, total[rows], out=scores[rows])  # from here on p
        ctx.save_for_backward(values, matrix, scores, targets)
        ctx.label_smoothing = label_smoothing
        normalizer = total.log_().add_(largest)  # log Z
        nll = (normalizer - target_scores).squeeze(1)
        ctx.mark_non_differentiable(nll)
        # (1 - a) (log Z - s_w) + a (log Z - mean_v s_v)
        loss = nll.clone() if mean is None else torch.lerp(nll, (normalizer - mean).squeeze(1), label_smoothing)
        return loss, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        values, matrix, probabilities, targets = ctx.saved_tensors
        dtype = torch.promote_types(probabilities.dtype, torch.float32)
        gradient, targets = gradient.unsqueeze(1), targets.unsqueeze(1)  # (N, 1)
        grad_values, grad_matrix = torch.zeros_like(values, dtype=dtype), torch.empty_like(matrix)
        grad_bias = matrix.new_empty(len(matrix))
        for words in _slices(len(matrix), len(values), values.device):
            # ds_v = (p_v - (1 - a) [v = w] - a / V) dloss of some words, (N, k)
            grad_scores = probabilities[:, words] * gradient
            columns = targets - words.start
            inside = (columns >= 0) & (columns < grad_scores.shape[1])
            columns = columns.clamp(0, grad_scores.shape[1] - 1)
            grad_scores.scatter_add_(1, columns, (ctx.label_smoothing - 1) * gradient * inside)
            if ctx.label_smoothing:
                grad_scores -= gradient * (ctx.label_smoothing / len(matrix))
            grad_bias[words] = grad_scores.sum(dim=0)
            # s = W x + b: dx = W^T ds, dW = sum_k ds_k x_k^T, db = sum_k ds_k
            grad_scores = grad_scores.to(values.dtype)
            grad_values += matmul(grad_scores, matrix[words])
            grad_matrix[words] = matmul(grad_scores.T, values)
        return grad_values.to(values.dtype), grad_matrix, grad_bias, None, None


def _slices(length: int, width: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of `length` rows or columns that have `width` scores each, as many as are processed together."""
    size = max(1, CHUNK_SCORES.get(device.type, 2**27) // width)
    for first in range(0, length, size):
        yield slice(first, min(first + size, length))
