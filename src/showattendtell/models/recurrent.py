"""Base class of recurrent decoders, with the plain loop over the steps of given captions.

Sizes are those of `showattendtell.types`; N is the number of words of all captions.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from showattendtell.models.captioner import Captioner
from showattendtell.models.generation import IncrementalDecoder, transposed
from showattendtell.models.interfaces import (
    AttentionCache,
    Decoder,
    DecoderState,
    ExportedStep,
    GivenCaptions,
    StepAttention,
    Steps,
)
from showattendtell.types import SampledLocations


class RecurrentDecoder(Decoder):
    """Base class of recurrent decoders. `step` is the recurrence; everything else is computed for all steps at once.

    A step t reads the word y_{t-1} and the context z_t, which attention computes from h_{t-1}. The arguments are those
    of `Decoder`.
    """

    reads_context = True
    """Whether every step reads its context vector; false if the image is read only once, by `start`."""

    has_cell = False
    """Whether `DecoderState.cell` is the memory cell (B, n) of an LSTM."""

    def attach(self, captioner: Captioner) -> None:
        attention = captioner.attention
        if attention.selective and not self.reads_context:
            raise ValueError(
                f"{type(self).__name__} sees the image once and has no use for {type(attention).__name__}; use "
                "attention=none with it"
            )

    def embed_words(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings E y (N, m) of tokens (N,) and their `word_gates` (N, ...)."""
        embedded = self.embed(tokens)
        return embedded, self.word_gates(embedded)

    @abstractmethod
    def word_gates(self, embedded: Tensor) -> Tensor:
        """Return the part of a step that depends on the word alone, from E y (..., m) to any last dimension."""

    @abstractmethod
    def step(self, word_gates: Tensor, context: Tensor, state: DecoderState) -> DecoderState:
        """Return the next state from `word_gates` (B, ...), the context z (B, D) and the previous state."""

    def region_features(self, regions: Tensor) -> Tensor | None:
        """Return what each region (I, L, D) adds to the input of `word_scores`, (I, L, w), if that input is the sum of
        this and `features_without_region`; None if it is not such a sum, as of a decoder with layers after the sum."""
        return None

    def features_without_region(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the other term of the sum, see `region_features`; the arguments are those of `output_features`."""
        raise NotImplementedError(f"{type(self).__name__} has no sum to take the region out of")

    def unroll(self, attention: StepAttention, captions: GivenCaptions) -> Steps:
        """Compute all steps of captions padded to T steps, one after the other: the definition of the model."""
        packing = captions.packing
        embedded, word_gates = self.embed_words(packing.pack(captions.inputs))
        cache = captions.cache.select(captions.image_index)  # one row per caption
        state = captions.state.select(captions.image_index)
        attended, states = [], [state]
        for t, gates in enumerate(packing.pad(word_gates).unbind(dim=1)):
            given = {} if captions.locations is None else {"locations": captions.locations[:, t]}
            attended.append(attention(cache, state, **given))
            state = self.step(gates, attended[-1].context, state)
            states.append(state)

        def pack(values: tuple[Tensor, ...]) -> Tensor:
            return packing.pack(torch.stack(values, dim=1))

        hidden, _ = zip(*states[1:], strict=True)
        contexts, weights, betas, samples = zip(*attended, strict=True)
        sample = None if samples[0] is None else SampledLocations(*map(pack, zip(*samples, strict=True)))
        previous = None
        if attention.reads_states:
            previous = DecoderState(*map(pack, zip(*states[:-1], strict=True)))
        return Steps(pack(hidden), pack(weights), pack(betas), pack(contexts), sample, embedded, word_gates, previous)

    def incremental(self, captioner: Captioner) -> Callable[[Tensor], IncrementalDecoder]:
        return partial(IncrementalDecoder, captioner, transposed(self.word_scores.weight))

    def export_step(
        self,
        attention: StepAttention,
        cache: AttentionCache,
        state: DecoderState,
        words: Tensor,
        region_scores: Tensor | None,
    ) -> ExportedStep:
        context, weights, gate, _ = attention(cache, state)
        embedded = self.embed(words)
        word_gates = self.word_gates(embedded)
        after = self.step(word_gates, context, state)
        steps = Steps(after.hidden, weights, gate, context, None, embedded, word_gates, state)
        return ExportedStep(attention.log_probs(self, cache, steps, region_scores), weights, gate, *after)
