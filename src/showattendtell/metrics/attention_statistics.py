"""Attention statistics during training: entropy, movement and coverage of attention maps."""

from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.data.tokenizers import WORD_CLASSES, word_class
from showattendtell.data.vocabulary import PAD, Vocabulary
from showattendtell.types import CaptionerOutput

STILL = 0.01
"""Maps of which less than this share of alpha moves from word to word are standing still."""


class RunningMean(NamedTuple):
    """A mean, and the number of its items."""

    mean: Tensor
    of: int


def attention_figures(trace: CaptionerOutput, tokens: Tensor) -> dict[str, RunningMean]:
    """Compute three statistics of alpha (B, T, L), over the steps at which `tokens` (B, T) has a word.

    entropy   -sum_i alpha_i log alpha_i, mean over words, in nats: 0 for one region, log L for uniform weights
    movement  sum_i |alpha_ti - alpha_(t-1)i| / 2 between words, mean: 0 for a constant map, 1 for maps without a
              common region
    coverage  sum_i min(1, sum_t alpha_ti) / min(L, T), mean over captions: 1 if no region gets a total weight above 1
              while others get less
    """
    mask = tokens != PAD
    words, captions = int(mask.sum()), len(tokens)
    entropy = (entropies(trace) * mask).sum() / words
    steps = (trace.weights.diff(dim=1).abs().sum(dim=2) / 2 * mask[:, 1:]).sum()
    looked = (trace.weights * mask.unsqueeze(2)).sum(dim=1).clamp(max=1).sum(dim=1)
    most = mask.sum(dim=1).clamp(max=trace.weights.shape[2])
    return {
        "entropy": RunningMean(entropy, words),
        "movement": RunningMean(steps / max(1, words - captions), words - captions),
        "coverage": RunningMean((looked / most).mean(), captions),
    }


def entropies(trace: CaptionerOutput) -> Tensor:
    """Return -sum_i alpha_i log alpha_i of each map (B, T), in nats."""
    return torch.special.entr(trace.weights).sum(dim=2)


class WordClasses:
    """beta by word class: is attention stronger at content words?"""

    def __init__(self, vocabulary: Vocabulary):
        names = [word_class(word) for word in vocabulary.words]
        self.names = [name for name in WORD_CLASSES if name in names]
        self._class_of = torch.tensor([self.names.index(name) for name in names])

    def betas(self, trace: CaptionerOutput, tokens: Tensor) -> dict[str, RunningMean]:
        """Return the mean of beta (B, T) over the words of each class in `tokens` (B, T)."""
        classes = self._class_of.to(tokens.device)[tokens].masked_fill(tokens == PAD, -1)
        figures = {}
        for number, name in enumerate(self.names):
            chosen = classes == number
            count = int(chosen.sum())
            figures[name] = RunningMean((trace.gates * chosen).sum() / max(1, count), count)
        return figures
