"""Operations on the scores s (logits) of all words: cross-entropy and log-sum-exp.

The cross-entropy of the word w is -log p(w) = log Z - s_w with the normalizer log Z = log sum_v e^s_v. No exponential
overflows, because the largest score m is subtracted first: log Z = m + log sum_v e^(s_v - m).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from showattendtell.models.kernels import accelerator, to_multiply, without_autocast
from showattendtell.models.kernels.parallel import compilable, run_threaded
from showattendtell.models.kernels.products import linear, matmul

LANES = 64
"""Maxima that `log_sum_exp` keeps side by side. One maximum would make every comparison wait for the one before; those
of different lanes are independent, and the compiler turns them into vector instructions."""

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
MINUS_INFINITY, MIN_EXPONENT = np.float32(-np.inf), np.float32(-87)
"""e^-87 is close to the smallest normal float32."""

LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
"""log2(e), and log(2) = LN2_HIGH + LN2_LOW, of which the first part has so few bits that n LN2_HIGH is exact."""

E = tuple(map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)))
"""Coefficients of e^r for |r| <= log(2) / 2, from expf of the Cephes library."""

BIAS, ULPS = np.float32(127), np.int32(2**23)
"""The bits of 2^n are (n + 127) 2^23."""


def add_bias_and_logsumexp_(scores: Tensor, bias: Tensor) -> Tensor:
    """Add the bias (V,) to the scores (B, V) in place; return log sum_v e^s_v of each caption, (B,)."""
    if not compilable(scores, bias):
        return scores.add_(bias).logsumexp(dim=1)
    sums = scores.new_empty(len(scores))
    run_threaded(log_sum_exp, len(scores), scores, bias, sums)
    return sums


def log_sum_exp(first, last, scores, bias, sums):  # type: ignore[no-untyped-def]
    """Compiled loop of `add_bias_and_logsumexp_`, with e^x = 2^n e^r, n = round(x / log 2) and |r| <= log(2) / 2.

    The library's exp is a call, which keeps compilers from vectorising the loop. This one takes a quarter of the time
    of torch's logsumexp (`python -m benchmarks.output_layer`).
    """
    num_words = scores.shape[1]
    aligned = num_words - num_words % LANES
    best = np.empty(LANES, np.float32)
    for row in range(first, last):
        best[:] = MINUS_INFINITY
        for start in range(0, aligned, LANES):
            for lane in range(LANES):
                score = scores[row, start + lane] + bias[start + lane]
                scores[row, start + lane] = score
                best[lane] = score if score > best[lane] else best[lane]
        maximum = best.max()
        for word in range(aligned, num_words):
            scores[row, word] += bias[word]
            maximum = max(maximum, scores[row, word])
        total = ZERO
        for word in range(num_words):
            x = scores[row, word] - maximum
            x = x if x > MIN_EXPONENT else MIN_EXPONENT  # of smaller ones 2^n would not be a normal number
            # n = round(x / log 2), r = x - n log 2
            n = np.floor(x * LOG2_E + HALF)
            r = x - n * LN2_HIGH - n * LN2_LOW
            # e^r = 1 + r + r^2 tail(r); 2^n is n + 127 in the bits of the exponent
            tail = ((((E[0] * r + E[1]) * r + E[2]) * r + E[3]) * r + E[4]) * r + HALF
            total += (tail * r * r + r + ONE) * np.int32(np.int32(n + BIAS) * ULPS).view(np.float32)
        sums[row] = maximum + np.log(total)


CHUNK_SCORES = {"cpu": 2**21, "cuda": 2**27}
"""The number of scores that are processed at once, 2^21 (8 MB) on the CPU because of its caches."""


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

    def select(self, words: Tensor) -> "OutputFeatures":
        """Return the inputs of some words, from their indices or a mask."""
        return self._replace(values=self.values[words])

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
