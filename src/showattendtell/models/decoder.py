"""Recurrent decoders, with the plain loop over the steps of given captions, and the LSTM decoder with its initial state
(Xu et al. 2015, Sec. 3.1.2).

Sizes are those of `showattendtell.types`; N is the number of words of all captions.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.models.captioner import (
    Captioner,
    IncrementalDecoder,
    SoftIncrementalDecoder,
    lstm,
    transposed,
)
from showattendtell.models.initialization import orthogonal_blocks, start_small
from showattendtell.models.interfaces import (
    AttentionCache,
    Decoder,
    DecoderState,
    ExportedStep,
    GivenCaptions,
    StepAttention,
    Steps,
    is_fused,
)
from showattendtell.models.kernels import accelerator, to_multiply
from showattendtell.models.kernels.products import Linear
from showattendtell.models.kernels.recurrence import RecurrenceWeights, unroll_fused
from showattendtell.settings import Fraction, PositiveInt
from showattendtell.text.vocabulary import START
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

    def unroll(self, attention: StepAttention, captions: GivenCaptions) -> Steps:
        """Compute all steps of captions padded to T steps, one after the other: the definition of the model."""
        packing = captions.packing
        embedded, word_gates = self.embed_words(packing.pack(captions.inputs))
        cache = captions.cache.select(captions.image_index)  # one row per caption
        state = captions.state.select(captions.image_index)
        attended, states = [], []
        for t, gates in enumerate(packing.pad(word_gates).unbind(dim=1)):
            given = {} if captions.locations is None else {"locations": captions.locations[:, t]}
            attended.append(attention(cache, state, **given))
            state = self.step(gates, attended[-1].context, state)
            states.append(state)

        def pack(values: tuple[Tensor, ...]) -> Tensor:
            return packing.pack(torch.stack(values, dim=1))

        hidden, _ = zip(*states, strict=True)
        contexts, weights, betas, samples = zip(*attended, strict=True)
        sample = None if samples[0] is None else SampledLocations(*map(pack, zip(*samples, strict=True)))
        return Steps(pack(hidden), pack(weights), pack(betas), pack(contexts), sample, embedded)

    def incremental(self, captioner: Captioner) -> Callable[[Tensor], IncrementalDecoder]:
        return partial(IncrementalDecoder, captioner, transposed(self.word_scores.weight))

    def export_step(
        self, attention: StepAttention, cache: AttentionCache, state: DecoderState, words: Tensor
    ) -> ExportedStep:
        context, weights, gate, _ = attention(cache, state)
        embedded = self.embed(words)
        after = self.step(self.word_gates(embedded), context, state)
        log_probs = self.score_words(embedded, after.hidden, context).log_softmax(dim=1)
        return ExportedStep(log_probs, weights, gate, *after)


class FirstState(nn.Module):
    """h_0 and c_0 from the mean region (I, D): ReLU layers with dropout, then a tanh layer each.

    Args:
        depth: the number of layers to h_0 or c_0, including the tanh layer.
        is_shared: h_0 and c_0 share the ReLU layers, of width D (released code); else each has its own, of width n.
    """

    def __init__(self, region_dim: int, hidden_dim: int, depth: int, dropout: float, is_shared: bool):
        super().__init__()
        width = region_dim if is_shared else hidden_dim

        def linear(number: int, outputs: int) -> nn.Module:
            return Linear(width, outputs) if number else start_small(Linear(region_dim, outputs))

        def relu_layers() -> list[nn.Module]:
            layers: list[nn.Module] = []
            for i in range(depth - 1):
                layers += [linear(i, width), nn.ReLU(), nn.Dropout(dropout)]
            return layers

        def tanh_layer() -> nn.Sequential:
            return nn.Sequential(linear(depth - 1, hidden_dim), nn.Tanh())

        self.shared = nn.Sequential(*(relu_layers() if is_shared else []))
        self.hidden, self.cell = (
            tanh_layer() if is_shared else nn.Sequential(*relu_layers(), tanh_layer()) for _ in range(2)
        )

    def forward(self, mean: Tensor) -> DecoderState:
        shared = self.shared(mean)
        return DecoderState(self.hidden(shared), self.cell(shared))


OutputPart = Literal["word", "hidden", "context"]
DropoutPlace = Literal["regions", "words", "mean", "start", "hidden", "output"]


class LSTMDecoder(RecurrentDecoder):
    """LSTM on [E y; h; z] with the deep output p(y) = softmax(L_o (E y + L_h h + L_z z)) (Xu et al. 2015, Eq. 1-3, 7).

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m, the width of the word embeddings.
        hidden_dim: n, the width of the LSTM state.
        dropout: the dropout probability at each place of `dropout_places`.
        dropout_places: regions: channels of the regions, the same channels in all regions of an image; words: word
            embeddings; mean: the mean region that initializes the state; start: the hidden layers of the initial
            state; hidden: h before the deep output; output: the deep output's sum (after its tanh).
        output: the terms of the deep output's sum.
        output_tanh: p(y) = softmax(L_o tanh(...)), as in the released code.
        tie_embeddings: share the weights of L_o and E, which suits small data sets.
        first_input: the embedding before the first word: that of `<start>`, or zero as in the released code.
        start: separate hidden layers for h_0 and c_0, or shared ones as in the released code.
        start_depth: the number of layers from the mean region to h_0.

    Raises:
        ValueError: `output` is empty.
    """

    fused = True
    has_cell = True

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 512,
        hidden_dim: PositiveInt = 512,
        dropout: Fraction = 0.5,
        dropout_places: Sequence[DropoutPlace] = ("mean", "start", "output"),
        output: Sequence[OutputPart] = ("word", "hidden", "context"),
        output_tanh: bool = False,
        tie_embeddings: bool = False,
        first_input: Literal["learned", "zero"] = "learned",
        start: Literal["separate", "shared"] = "separate",
        start_depth: PositiveInt = 2,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        if not output:
            raise ValueError("decoder.output needs at least one of word, hidden, context; got none")
        self.zero_first = first_input == "zero"
        start_dropout = dropout * ("start" in dropout_places)
        self.first_state = FirstState(region_dim, hidden_dim, start_depth, start_dropout, start == "shared")
        self.read_word = Linear(embedding_dim, 4 * hidden_dim)
        self.hidden_gates = orthogonal_blocks(Linear(hidden_dim, 4 * hidden_dim, bias=False))
        self.context_gates = start_small(Linear(region_dim, 4 * hidden_dim, bias=False))
        self.word_output = "word" in output
        self.hidden_output = Linear(hidden_dim, embedding_dim) if "hidden" in output else None
        reads_context = "context" in output
        self.context_output = start_small(Linear(region_dim, embedding_dim, bias=False)) if reads_context else None
        self.activation = nn.Tanh() if output_tanh else nn.Identity()
        self.word_scores = Linear(embedding_dim, vocabulary_size)
        nn.init.zeros_(self.word_scores.bias)
        if tie_embeddings:
            self.word_scores.weight = self.embedding.weight
        self.region_dropout, self.word_dropout, self.mean_dropout, self.hidden_dropout, self.output_dropout = (
            nn.Dropout(dropout * (place in dropout_places))
            for place in ("regions", "words", "mean", "hidden", "output")
        )

    def init_state(self, regions: Tensor) -> DecoderState:
        """Return h_0 and c_0, (I, n) each, from the mean of the regions (I, L, D)."""
        return self.first_state(self.mean_dropout(regions.mean(dim=1)))

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.word_dropout(super().embed(tokens))
        return embedded * (tokens != START).unsqueeze(-1) if self.zero_first else embedded

    def embed_words(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings and their gates; each distinct word is computed once, unless every token has its own
        dropout mask."""
        dropped = self.training and self.word_dropout.p > 0
        if dropped or tokens.device.type != "cpu":  # `unique` would synchronize a GPU
            return super().embed_words(tokens)
        words, inverse = tokens.unique(return_inverse=True)
        embedded, gates = super().embed_words(words)
        # an embedding is a gather whose backward pass adds up the gradients of equal words
        return F.embedding(inverse, embedded), F.embedding(inverse, gates)

    def word_gates(self, embedded: Tensor) -> Tensor:
        """Return W_y E y + b, the word's part of the gates' pre-activations, (..., 4n)."""
        return self.read_word(embedded)

    def unroll(self, attention: Any, captions: GivenCaptions) -> Steps:
        if not self._fuses(attention):
            return super().unroll(attention, captions)
        embedded, word_gates = self.embed_words(captions.packing.pack(captions.inputs))
        sampler = attention if attention.samples else None
        steps = unroll_fused(self._recurrence_weights(attention), captions, word_gates, sampler)
        return steps._replace(embedded=embedded)

    def _fuses(self, attention: Any) -> bool:
        """Return whether the fused recurrence computes the steps: a subclass may override any part of them."""
        return is_fused(self, attention) and is_fused(attention.score)

    def _recurrence_weights(self, attention: Any) -> RecurrenceWeights:
        """Stack the matrices that read h; convert them to the autocast's precision."""
        score, gate = attention.score, [] if attention.gate is None else [attention.gate]
        biases = [layer.bias for layer in (score.query, *gate)]
        no_bias = biases[0].new_zeros(4 * self.hidden_dim)  # word_gates contain the bias of the gates
        state = to_multiply(*(layer.weight for layer in (self.hidden_gates, score.query, *gate)))
        bias, context = to_multiply(torch.cat([no_bias, *biases]), self.context_gates.weight)
        # hard attention's inverse_temperature multiplies e = u . tanh(...), so it is part of u
        u = attention.inverse_temperature * score.score.weight.squeeze(0)
        return RecurrenceWeights(torch.cat(state), bias, context, u)

    @torch.no_grad()
    def incremental(self, captioner: Captioner) -> Callable[[Tensor], IncrementalDecoder]:
        attention: Any = captioner.attention
        words = transposed(self.word_scores.weight)
        is_fast = words.device.type == "cpu" or accelerator(words) is not None
        if attention.samples or not (is_fast and self._fuses(attention)):
            return partial(IncrementalDecoder, captioner, words)
        state, bias, context, score = self._recurrence_weights(attention)
        if self.context_output is not None:
            context = torch.cat([context, self.context_output.weight.to(context)])
        weights = RecurrenceWeights(transposed(state), bias.to(score.dtype), transposed(context), score)
        return partial(SoftIncrementalDecoder, captioner, weights, words)

    def step(self, word_gates: Tensor, context: Tensor, state: DecoderState) -> DecoderState:
        return lstm(word_gates + self.hidden_gates(state.hidden) + self.context_gates(context), state.cell)

    def output_features(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        parts = self.output_parts(embedded, hidden)
        if self.context_output is not None:
            parts.append(self.context_output(context))
        return self.output_dropout(self.activation(torch.stack(torch.broadcast_tensors(*parts)).sum(dim=0)))

    def output_parts(self, embedded: Tensor, hidden: Tensor) -> list[Tensor]:
        """Return the terms of the deep output's sum, without that of the context."""
        parts = [embedded] if self.word_output else []
        if self.hidden_output is not None:
            parts.append(self.hidden_output(self.hidden_dropout(hidden)))
        return parts
