"""-log p of words from what their scores are computed from, a piece of the N x V scores at a time."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.model.precision import to_multiply, without_autocast
from showattendtell.records import Answers

TOGETHER = {"cpu": 2**21, "cuda": 2**27}
"""The scores that are turned into probabilities at once."""


def cross_entropy(answers: Answers, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """-log p of the words `targets` (N,), under label smoothing s against 1 - s on the word plus s / V on every word.

    The scores are kept for the backward pass, but neither their probabilities nor their gradient as a whole.
    """
    given = to_multiply(*answers)
    with without_autocast(targets.device):
        return _CrossEntropy.apply(*given, targets, label_smoothing)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, matrix: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float
    ) -> Tensor:
        logits = F.linear(values, matrix, bias)
        sums, means = [], []
        for rows in _pieces(logits):
            piece = logits[rows].to(_at_least_single(logits))
            sums.append(piece.logsumexp(dim=1))
            means.append(piece.mean(dim=1) if label_smoothing else sums[-1])
        normaliser = torch.cat(sums)
        said = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        ctx.save_for_backward(values, matrix, logits, normaliser, targets)
        ctx.label_smoothing = label_smoothing
        nll = normaliser - said
        return torch.lerp(nll, normaliser - torch.cat(means), label_smoothing) if label_smoothing else nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, matrix, logits, normaliser, targets = ctx.saved_tensors
        to_values, to_matrix = torch.empty_like(values), torch.zeros_like(matrix)
        to_bias = matrix.new_zeros(len(matrix))
        for rows in _pieces(logits):
            given = gradient[rows].unsqueeze(1)
            pulled = torch.exp(logits[rows] - normaliser[rows].unsqueeze(1)).mul_(given)  # (k, V)
            pulled.scatter_add_(1, targets[rows].unsqueeze(1), (ctx.label_smoothing - 1) * given)
            if ctx.label_smoothing:
                pulled -= given * (ctx.label_smoothing / pulled.shape[1])
            pulled = pulled.to(values.dtype)
            to_values[rows] = pulled @ matrix
            to_matrix.addmm_(pulled.T, values[rows])
            to_bias += pulled.sum(dim=0)
        return to_values, to_matrix, to_bias, None, None


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Rows that are taken together."""
    size = max(1, TOGETHER.get(logits.device.type, 2**27) // logits.shape[1])
    return (slice(first, first + size) for first in range(0, len(logits), size))


def _at_least_single(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
