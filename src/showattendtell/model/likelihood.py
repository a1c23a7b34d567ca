"""log p of words from their scores: what the scores of all words exceed it by."""

import numpy as np
from torch import Tensor

from showattendtell.model.loops import compilable, share_out

LANES = 64
"""The words of which the largest score is kept at once."""

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
NEVER, FAINT = np.float32(-np.inf), np.float32(-87)
"""Below e^-87 there are no normal numbers."""

LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
E = tuple(map(np.float32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)))
BIAS, ULPS = np.float32(127), np.int32(2**23)
"""The bits of 2^n are (n + 127) 2^23."""


def normalisers(scores: Tensor, bias: Tensor) -> Tensor:
    """Adds the bias (V,) to the scores (B, V), and gives log sum_v e^s_v of each caption, (B,)."""
    if not compilable(scores, bias):
        return scores.add_(bias).logsumexp(dim=1)
    sums = scores.new_empty(len(scores))
    share_out(log_sum_exp, len(scores), scores, bias, sums)
    return sums


def log_sum_exp(first, last, scores, bias, sums):  # type: ignore[no-untyped-def]
    """e^x is 2^n e^r with |r| <= log(2) / 2, and e^r the polynomial of Cephes' expf."""
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
            n = np.floor(x * LOG2_E + HALF)
            r = x - n * LN2_HIGH - n * LN2_LOW
            tail = ((((E[0] * r + E[1]) * r + E[2]) * r + E[3]) * r + E[4]) * r + HALF
            total += (tail * r * r + r + ONE) * np.int32(np.int32(n + BIAS) * ULPS).view(np.float32)
        sums[row] = most + np.log(total)
