"""What training minimises (Xu et al. 2015, Eq. 9): pure functions of scores, weights and tokens."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from showattendtell.arguments import Fraction, NonNegativeFloat
from showattendtell.records import Trace
from showattendtell.text.vocabulary import PAD


class Loss(NamedTuple):
    """Scalars, means over captions: `nll` is -log p, `total` is what training minimises."""

    total: Tensor
    nll: Tensor
    attention: Tensor


class SoftLoss(NamedTuple):
    """-log p(y|a) + lambda * sum_i (1 - sum_t alpha_ti)^2, summed per caption, averaged over captions.

    attention_weight: lambda, the weight of the doubly stochastic penalty.
    label_smoothing: the share of a target word's probability that is spread over all words.
    """

    attention_weight: NonNegativeFloat = 1.0
    label_smoothing: Fraction = 0.0

    def __call__(self, trace: Trace, tokens: Tensor) -> Loss:
        """`tokens` (B, T) are the targets with `<pad>` behind `<eos>`; padded steps count nowhere."""
        nll = negative_log_likelihood(trace.logits, tokens, self.label_smoothing).mean()
        attention = doubly_stochastic_penalty(trace.weights, tokens != PAD).mean()
        return Loss(nll + self.attention_weight * attention, nll, attention)


def negative_log_likelihood(logits: Tensor, tokens: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """-log p of each caption, summed over its words: (B, T, V) and (B, T) to (B,).

    With label smoothing s the target is 1 - s on the word plus s / V on every word.
    """
    words = F.cross_entropy(
        logits.flatten(0, 1), tokens.flatten(), ignore_index=PAD, reduction="none", label_smoothing=label_smoothing
    )
    return words.view_as(tokens).sum(dim=1)


def doubly_stochastic_penalty(weights: Tensor, mask: Tensor, tau: float = 1.0) -> Tensor:
    """sum_i (tau - sum_t alpha_ti)^2 of each caption: every region is to be looked at about `tau` times in all.

    Args:
        weights: (B, T, L).
        mask: (B, T), true where the caption has a word.
    """
    looked = (weights * mask.unsqueeze(-1)).sum(dim=1)  # (B, L)
    return (tau - looked).square().sum(dim=1)
