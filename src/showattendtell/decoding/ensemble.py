"""Ensembles: one captioner, or several with the same vocabulary whose word probabilities are averaged."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import DecoderState
from showattendtell.models.generation import IncrementalDecoder, StepOutput, incremental_decoder


class EnsembleState(NamedTuple):
    """Each captioner's decoder states after the words of P captions; their images (P,) are ascending."""

    states: tuple[DecoderState, ...]
    images: Tensor

    def index_select(self, captions: Tensor) -> "EnsembleState":
        return EnsembleState(tuple(state.select(captions) for state in self.states), self.images[captions])


Precision = Literal["float32", "bfloat16"]


class EnsembleDecoder:
    """Decode images with an ensemble: p of a word is the mean over the captioners; alpha, beta and locations are those
    of the first captioner."""

    def __init__(self, narrations: Sequence[IncrementalDecoder], precision: Precision):
        self._narrations, self._precision = tuple(narrations), precision

    def init_state(self) -> EnsembleState:
        """Return the states before the first word, one per image."""
        states = tuple(narration.first for narration in self._narrations)
        return EnsembleState(states, torch.arange(len(states[0].hidden), device=states[0].hidden.device))

    def step(self, stems: EnsembleState, which: Tensor, tokens: Tensor) -> tuple[StepOutput, EnsembleState]:
        """Decode one word: B captions continue the stems `which` (B,) with the last words `tokens` (B,).

        Return the first captioner's output with the mean p, and the states of all captioners.
        """
        pairs = zip(self._narrations, stems.states, strict=True)
        with products_in(self._precision, tokens.device):
            steps = [narration.step(state, stems.images, which, tokens) for narration, state in pairs]
        scores, normalisers = steps[0].scores, steps[0].normalisers
        if len(steps) > 1:
            # log of the mean p: log sum_k p_k - log K
            scores = torch.stack([step.scores - step.normalisers.unsqueeze(1) for step in steps]).logsumexp(dim=0)
            normalisers = torch.full_like(normalisers, math.log(len(steps)))
        states = EnsembleState(tuple(step.state for step in steps), stems.images[which])
        return steps[0]._replace(scores=scores, normalisers=normalisers), states


class Ensemble:
    """An ensemble of one or more captioners; valid until their weights change.

    Args:
        captioners: the members; one that is listed twice gets double weight and is prepared once.
        precision: precision of matrix products.
    """

    def __init__(self, captioners: Sequence[Captioner], precision: Precision = "float32"):
        self._precision = precision
        device = next(captioners[0].parameters()).device
        with products_in(precision, device):
            prepared = {captioner: incremental_decoder(captioner) for captioner in dict.fromkeys(captioners)}
        self._narrators = [prepared[captioner] for captioner in captioners]

    def start(self, regions: Sequence[Tensor]) -> EnsembleDecoder:
        """Return a decoder for images, given their regions (I, L, D) for each captioner."""
        with products_in(self._precision, regions[0].device):
            narrations = [narrate(seen) for narrate, seen in zip(self._narrators, regions, strict=True)]
        return EnsembleDecoder(narrations, self._precision)


def products_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return an autocast to bfloat16, or a context that does nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
