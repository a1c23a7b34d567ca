"""One captioner, or several with one vocabulary that speak as one."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from showattendtell.model.captioner import Captioner
from showattendtell.model.narrator import Narration, narrator
from showattendtell.model.steps import State


class Thoughts(NamedTuple):
    """Each captioner's states after the words of P captions, whose images (P,) ascend."""

    states: tuple[State, ...]
    images: Tensor

    def follow(self, captions: Tensor) -> "Thoughts":
        return Thoughts(tuple(state.select(captions) for state in self.states), self.images[captions])


class Utterance(NamedTuple):
    """What B captions that continue P stems say next.

    scores       (B, V) log p of the next word up to a constant
    normalisers  (B,) that constant
    thoughts     of the B captions, now
    weights      (P, L) alpha
    gate         (P,) beta
    locations    (P, H) which regions hard attention drew; None where nothing is drawn
    """

    scores: Tensor
    normalisers: Tensor
    thoughts: Thoughts
    weights: Tensor
    gate: Tensor
    locations: Tensor | None = None


Precision = Literal["float32", "bfloat16"]


class Speech:
    """What captioners say of images together: p of a word is the mean of theirs; alpha, beta and locations are those of
    the first one."""

    def __init__(self, narrations: Sequence[Narration], precision: Precision):
        self._narrations, self._precision = tuple(narrations), precision

    def begin(self) -> Thoughts:
        """Before the first word, of each image once."""
        states = tuple(narration.first for narration in self._narrations)
        return Thoughts(states, torch.arange(len(states[0].hidden), device=states[0].hidden.device))

    def step(self, stems: Thoughts, which: Tensor, tokens: Tensor) -> Utterance:
        """One word further: captions that continue the stems `which` (B,) by the last words (B,)."""
        pairs = zip(self._narrations, stems.states, strict=True)
        with products_in(self._precision, tokens.device):
            steps = [narration.step(state, stems.images, which, tokens) for narration, state in pairs]
        scores, normalisers = steps[0].scores, steps[0].normalisers
        if len(steps) > 1:
            scores = torch.stack([step.scores - step.normalisers.unsqueeze(1) for step in steps]).logsumexp(dim=0)
            normalisers = torch.full_like(normalisers, math.log(len(steps)))
        thoughts = Thoughts(tuple(step.state for step in steps), stems.images[which])
        return Utterance(scores, normalisers, thoughts, *steps[0][3:])


class Speaker:
    """One captioner, or several that speak as one, for as long as their weights stay as they are.

    Args:
        captioners: one that stands there twice is prepared once.
        precision: in which matrices are multiplied.
    """

    def __init__(self, captioners: Sequence[Captioner], precision: Precision = "float32"):
        self._precision = precision
        device = next(captioners[0].parameters()).device
        with products_in(precision, device):
            prepared = {captioner: narrator(captioner) for captioner in dict.fromkeys(captioners)}
        self._narrators = [prepared[captioner] for captioner in captioners]

    def before(self, regions: Sequence[Tensor]) -> Speech:
        """Before images, which each captioner sees in its own way (I, L, D)."""
        with products_in(self._precision, regions[0].device):
            narrations = [narrate(seen) for narrate, seen in zip(self._narrators, regions, strict=True)]
        return Speech(narrations, self._precision)


def products_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Matrices are multiplied in bfloat16, or else as they are elsewhere."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
