"""Words from their scores s: cross-entropy -log p(w) = log sum_v e^s_v - s_w, its normalisers, and the top-k words."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.kernels import to_multiply, without_autocast
from showattendtell.models.kernels.parallel import compilable, share_out
from showattendtell.types import OutputFeatures

LANES = 64
"""The number of parallel lanes of the maximum over words."""

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
NEVER, FAINT = np.float32(-np.inf), np.float32(-87)
"""e^-87 is close to the smallest normal float32."""

LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
E = tuple(map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)))
BIAS, ULPS = np.float32(127), np.int32(2**23)
"""The bits of 2^n are (n + 127) 2^23."""


def normalisers(scores: Tensor, bias: Tensor) -> Tensor:
    """Add the bias (V,) to the scores (B, V) in place; return log sum_v e^s_v of each caption, (B,)."""
    if not compilable(scores, bias):
        return scores.add_(bias).logsumexp(dim=1)
    sums = scores.new_empty(len(scores))
    share_out(log_sum_exp, len(scores), scores, bias, sums)
    return sums


def log_sum_exp(first, last, scores, bias, sums):  # type: ignore[no-untyped-def]
    """Compiled loop of `normalisers`. e^x = 2^n e^r with |r| <= log(2) / 2; e^r is the polynomial of Cephes' expf."""
    num_words = scores.shape[1]
    whole = num_words - num_words % LANES
    best = np.empty(LANES, np.float32)
    for row in range(first, last):
        best[:] = NEVER
        for start in range(0, whole, LANES):
            for lane in range(LANES):
                score = scores[row, start + lane] + bias[start + lane]
                scores[row, start + lane] = score
                best[lane] = score if score > best[lane] else best[lane]
        most = best.max()
        for word in range(whole, num_words):
            scores[row, word] += bias[word]
            most = max(most, scores[row, word])
        total = ZERO
        for word in range(num_words):
            x = scores[row, word] - most
            x = x if x > FAINT else FAINT
            # n = round(x / log 2), r = x - n log 2; log 2 in two parts, of which n LN2_HIGH is exact
            n = np.floor(x * LOG2_E + HALF)
            r = x - n * LN2_HIGH - n * LN2_LOW
            # e^r = 1 + r + r^2 tail(r); 2^n is n + 127 in the bits of the exponent
            tail = ((((E[0] * r + E[1]) * r + E[2]) * r + E[3]) * r + E[4]) * r + HALF
            total += (tail * r * r + r + ONE) * np.int32(np.int32(n + BIAS) * ULPS).view(np.float32)
        sums[row] = most + np.log(total)


TOP_LANES = 128
"""The number of parallel lanes of `rank`."""


def likeliest(scores: Tensor, number: int) -> Tensor:
    """Return the words with the `number` largest scores (B, V), best first, (B, number): top-k."""
    if not compilable(scores):
        return scores.topk(number, dim=-1).indices
    words = torch.empty(len(scores), number, dtype=torch.long)
    share_out(rank, len(scores), scores.contiguous(), words)
    return words


def rank(first, last, scores, words):  # type: ignore[no-untyped-def]
    """Write words (B, n), best first. Lane v % TOP_LANES holds word v; the n best words are in the n best lanes."""
    num_words, number = scores.shape[1], words.shape[1]
    whole = num_words - num_words % TOP_LANES
    best, held = np.empty(TOP_LANES, np.float32), np.empty(number, np.float32)
    for row in range(first, last):
        best[:] = NEVER
        # the best word of each lane
        for start in range(0, whole, TOP_LANES):
            for lane in range(TOP_LANES):
                score = scores[row, start + lane]
                best[lane] = score if score > best[lane] else best[lane]
        for word in range(whole, num_words):
            best[word - whole] = max(best[word - whole], scores[row, word])
        # `held`: the n best of these, in order; no word below the last of them is among the n best
        held[:] = NEVER
        for lane in range(TOP_LANES):
            place = number - 1
            if best[lane] > held[place]:
                while place > 0 and best[lane] > held[place - 1]:
                    held[place] = held[place - 1]
                    place -= 1
                held[place] = best[lane]
        least = held[-1]
        # insertion sort of the words of the lanes that reach it
        held[:] = NEVER
        found = 0
        for lane in range(TOP_LANES):
            if best[lane] < least or best[lane] == NEVER:
                continue
            for word in range(lane, num_words, TOP_LANES):
                score = scores[row, word]
                place = min(found, number - 1)
                if score > held[place]:
                    while place > 0 and score > held[place - 1]:
                        held[place], words[row, place] = held[place - 1], words[row, place - 1]
                        place -= 1
                    held[place], words[row, place] = score, word
                    found += 1
        # rows with too few finite scores: fill up with impossible words
        for word in range(num_words):
            if found >= number:
                break
            if not scores[row, word] > NEVER:
                words[row, found] = word
                found += 1


TOGETHER = {"cpu": 2**21, "cuda": 2**27}
"""The number of scores that are turned into probabilities at once."""


class CrossEntropy(NamedTuple):
    """Cross-entropy of the target words, (N,) each.

    learned  against a target of 1 - s on the word plus s / V on every word, s the label smoothing; differentiable
    nll      -log p of the word, without a gradient, for logging
    """

    learned: Tensor
    nll: Tensor


def cross_entropy(features: OutputFeatures, targets: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
    """Return the cross-entropy of the words `targets` (N,). The backward pass keeps the scores, but never all
    probabilities or all gradients of the scores at once."""
    given = to_multiply(*features)
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
            # log sum_v e^s_v = m + log sum_v e^(s_v - m), m the largest score
            normaliser[rows] = powers.sum(dim=1, keepdim=True).log_().add_(largest[rows])
        ctx.save_for_backward(values, matrix, logits, normaliser, targets)
        ctx.label_smoothing = label_smoothing
        nll = (normaliser - logits.gather(1, targets.unsqueeze(1))).squeeze(1)
        ctx.mark_non_differentiable(nll)
        # smoothed: (1 - s) (log Z - s_w) + s / V sum_v (log Z - s_v), log Z the normaliser
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
            # d(-log p_w) / ds = p - 1_w, of which the smoothing s moves s / V to every word
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
    """Yield the rows that are processed together, and a buffer of that size."""
    number, words = logits.shape
    size = min(number, max(1, TOGETHER.get(logits.device.type, 2**27) // words))
    room = logits.new_empty(size, words, dtype=dtype)
    for first in range(0, number, size):
        last = min(first + size, number)
        yield slice(first, last), room[: last - first]
