"""-log p of words from what their scores are computed from, a piece of the N x V scores at a time."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.model.precision import to_multiply, without_autocast
from showattendtell.records import Answers

TOGETHER = {"cpu": 2**21, "cuda": 2**27}
"""The scores that are turned into probabilities at once."""


class CrossEntropy(NamedTuple):
    """What a model's answers cost by the words that were said, (N,) each.

    learned  against a target of 1 - s on the word plus s / V on every word, s the label smoothing
    nll      -log p of the word, as a figure without a gradient
    """

    learned: Tensor
    nll: Tensor


def cross_entropy(answers: Answers, targets: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
    """Of the words `targets` (N,). The scores are kept for the backward pass, but neither their probabilities nor their
    gradient as a whole."""
    given = to_multiply(*answers)
    with without_autocast(targets.device):
        return CrossEntropy(*_CrossEntropy.apply(*given, targets, label_smoothing))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, matrix: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        logits = F.linear(values, matrix, bias)
        full = torch.promote_types(logits.dtype, torch.float32)
        largest = logits.amax(dim=1, keepdim=True).to(full)
        normaliser, mean = torch.empty_like(largest), torch.empty_like(largest)
        for rows, room in _pieces(logits, full):
            if label_smoothing:
                mean[rows] = logits[rows].mean(dim=1, keepdim=True, dtype=full)
            powers = torch.sub(logits[rows], largest[rows], out=room).exp_()
            normaliser[rows] = powers.sum(dim=1, keepdim=True).log_().add_(largest[rows])
        ctx.save_for_backward(values, matrix, logits, normaliser, targets)
        ctx.label_smoothing = label_smoothing
        nll = (normaliser - logits.gather(1, targets.unsqueeze(1))).squeeze(1)
        ctx.mark_non_differentiable(nll)
        return torch.lerp(nll, (normaliser - mean).squeeze(1), label_smoothing) if label_smoothing else nll.clone(), nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        values, matrix, logits, normaliser, targets = ctx.saved_tensors
        to_values, to_matrix = torch.empty_like(values), torch.empty_like(matrix)
        to_bias, kept = matrix.new_zeros(len(matrix)), 0
        for rows, room in _pieces(logits, normaliser.dtype):
            given = gradient[rows].unsqueeze(1)
            pulled = torch.sub(logits[rows], normaliser[rows], out=room).exp_().mul_(given)  # (k, V)
            pulled.scatter_add_(1, targets[rows].unsqueeze(1), (ctx.label_smoothing - 1) * given)
            if ctx.label_smoothing:
                pulled -= given * (ctx.label_smoothing / pulled.shape[1])
            pulled = pulled.to(values.dtype)
            torch.mm(pulled, matrix, out=to_values[rows])
            to_matrix = torch.addmm(to_matrix, pulled.T, values[rows], beta=kept, out=to_matrix)
            to_bias += pulled.sum(dim=0)
            kept = 1
        return to_values, to_matrix, to_bias, None, None


def _pieces(logits: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Rows that are taken together, and room for as many."""
    number, words = logits.shape
    size = min(number, max(1, TOGETHER.get(logits.device.type, 2**27) // words))
    room = logits.new_empty(size, words, dtype=dtype)
    for first in range(0, number, size):
        last = min(first + size, number)
        yield slice(first, last), room[: last - first]
