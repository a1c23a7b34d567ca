"""What attention does while a model learns: numbers that tell a map that looks from one that does not."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.processes import gather, rank
from showattendtell.records import Trace
from showattendtell.text.vocabulary import PAD, Vocabulary
from showattendtell.text.word_classes import WORD_CLASSES, word_class

STILL = 0.01
"""Maps of which less than this share of alpha moves from word to word are standing still."""


class Figure(NamedTuple):
    """A mean, and the number of things that it is the mean of."""

    mean: Tensor
    of: int


def pool(figures: Iterable[Figure]) -> Figure:
    """The mean over all the things that the figures are means of; 0 of none."""
    means, of = zip(*figures, strict=True)
    counts = torch.tensor(of, dtype=torch.float64)
    return Figure((torch.stack(means).to(counts) * counts).sum() / max(1, sum(of)), sum(of))


class RunningMeans:
    """The means of figures over the steps so far; they stay on the figures' device, and nothing waits for it."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[Tensor, Tensor | int]] = {}

    def add(self, name: str, value: Tensor, of: Tensor | int = 1) -> None:
        """Take the mean of `of` further things into a figure."""
        mean, before = self._means.get(name, (torch.zeros((), device=value.device), 0))
        together = before + of
        self._means[name] = mean + (value.detach().float() - mean) * (of / together), together

    def figures(self) -> dict[str, Figure]:
        return {name: Figure(mean.cpu(), int(of)) for name, (mean, of) in self._means.items()}

    def clear(self) -> None:
        self._means = {}

    def resume(self, figures: Mapping[str, Figure], device: torch.device) -> None:
        """Go on from what `figures` gave."""
        self._means = {name: (mean.float().to(device), of) for name, (mean, of) in figures.items()}


def pool_processes(own: dict[str, Figure]) -> dict[str, Figure]:
    """The figures over all processes, of which some may have had no batch."""
    by_process = list(gather({str(rank()): own}).values())
    names = dict.fromkeys(name for figures in by_process for name in figures)
    return {name: pool(figures[name] for figures in by_process if name in figures) for name in names}


def watch_maps(trace: Trace, tokens: Tensor) -> dict[str, Figure]:
    """Three numbers on alpha (B, T, L), over the steps at which `tokens` (B, T) has a word.

    entropy   -sum_i alpha_i log alpha_i, a word's mean, in nats: 0 for one region, log L for all alike
    movement  sum_i |alpha_ti - alpha_(t-1)i| / 2 from word to word, the mean: 0 for a map that stands still, 1 for maps
              that share no region
    coverage  sum_i min(1, sum_t alpha_ti) / min(L, T), a caption's mean: 1 where no region is looked at longer than one
              word while others wait
    """
    mask = tokens != PAD
    words, captions = int(mask.sum()), len(tokens)
    entropy = (entropies(trace) * mask).sum() / words
    steps = (trace.weights.diff(dim=1).abs().sum(dim=2) / 2 * mask[:, 1:]).sum()
    looked = (trace.weights * mask.unsqueeze(2)).sum(dim=1).clamp(max=1).sum(dim=1)
    most = mask.sum(dim=1).clamp(max=trace.weights.shape[2])
    return {
        "entropy": Figure(entropy, words),
        "movement": Figure(steps / max(1, words - captions), words - captions),
        "coverage": Figure((looked / most).mean(), captions),
    }


def entropies(trace: Trace) -> Tensor:
    """-sum_i alpha_i log alpha_i of each map (B, T), in nats."""
    return torch.special.entr(trace.weights).sum(dim=2)


class WordClasses:
    """beta by the class of the word that is said: does the model look more when it names a thing?"""

    def __init__(self, vocabulary: Vocabulary):
        names = [word_class(word) for word in vocabulary.words]
        self.names = [name for name in WORD_CLASSES if name in names]
        self._class_of = torch.tensor([self.names.index(name) for name in names])

    def betas(self, trace: Trace, tokens: Tensor) -> dict[str, Figure]:
        """The mean of beta (B, T) over the words of each class in `tokens` (B, T)."""
        classes = self._class_of.to(tokens.device)[tokens].masked_fill(tokens == PAD, -1)
        figures = {}
        for number, name in enumerate(self.names):
            chosen = classes == number
            count = int(chosen.sum())
            figures[name] = Figure((trace.gates * chosen).sum() / max(1, count), count)
        return figures
