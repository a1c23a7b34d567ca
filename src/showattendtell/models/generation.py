"""Incremental decoding: attention and decoder, one word at a time.

Attention reads the state before the last word. Captions of an image that differ only in their last word, as beams often
do, therefore share one *stem* and one attention step. B captions continue P stems.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import DecoderState, LSTMDecoder
from showattendtell.models.kernels import to_multiply, without_autocast
from showattendtell.models.kernels.attention import RegionPairs, WeightedSum
from showattendtell.models.kernels.cross_entropy import normalisers
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.recurrence import is_fused_supported, weights_of


class StepOutput(NamedTuple):
    """One step of incremental decoding: B captions that continue P stems.

    scores       (B, V) unnormalised log p of the next word: log p = scores - normalisers
    normalisers  (B,) the log-sum-exp of the scores
    state        of the captions, after their last words
    weights      (P, L) alpha
    gate         (P,) beta
    locations    (P, H) the regions that hard attention sampled; None without sampling
    """

    scores: Tensor
    normalisers: Tensor
    state: DecoderState
    weights: Tensor
    gate: Tensor
    locations: Tensor | None = None


class IncrementalDecoder:
    """Step a captioner over images (I, L, D), one word at a time, without gradients.

    Args:
        words: the output layer's matrix (m, V), from `transposed`.
    """

    def __init__(self, captioner: Captioner, words: Tensor, regions: Tensor):
        self.attention, self.decoder = captioner.attention, captioner.decoder
        self.memory, first = captioner.init_state(regions)
        self.first = DecoderState(*(part.to(regions.dtype) for part in first))
        self._images = torch.arange(len(regions), device=regions.device)
        self._words, self._room = words, regions.new_empty(0, words.shape[1])

    def step(self, state: DecoderState, images: Tensor, stems: Tensor, tokens: Tensor) -> StepOutput:
        """Decode one word. The next call overwrites the returned scores.

        Args:
            state: the states of the stems, (P, n).
            images: (P,) the image of each stem, ascending.
            stems: (B,) the stem that each caption continues.
            tokens: (B,) the last word of each caption.
        """
        # attention takes equally many stems of every image: `grid` repeats the last one of each
        present, counts = images.unique_consecutive(return_counts=True)
        if 2 * len(present) <= len(self._images):
            self.memory = self.memory.select(torch.searchsorted(self._images, present))
            self._images = present
        places = torch.searchsorted(self._images, present)
        number, starts = torch.arange(int(counts.max()), device=images.device), counts.cumsum(0) - counts
        grid = torch.zeros(len(self._images), len(number), dtype=torch.long, device=images.device)
        grid[places] = starts.unsqueeze(1) + torch.minimum(number, counts.unsqueeze(1) - 1)
        glimpse = self.attention(self.memory, state.select(grid.flatten()))
        within = torch.arange(len(images), device=images.device) - starts.repeat_interleave(counts)
        rows = places.repeat_interleave(counts) * len(number) + within  # the row of each stem in the grid
        context = glimpse.context[rows].index_select(0, stems)
        embedded, word_gates = self.decoder.embed_words(tokens)
        state = self.decoder.step(word_gates, context, state.select(stems))
        scores = self.score(self.decoder.output_features(embedded, state.hidden, context))
        locations = None if glimpse.sample is None else glimpse.sample.locations[rows]
        return StepOutput(*scores, state, glimpse.weights[rows], glimpse.gate[rows], locations)

    def score(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the next word (B, V) and their normalisers (B,)."""
        if len(self._room) < len(features):
            self._room = self._room.new_empty(len(features), self._room.shape[1])
        scores, features = self._room[: len(features)], features.to(self._words.dtype)
        if scores.dtype == features.dtype:
            torch.mm(features, self._words, out=scores)
        else:
            scores.copy_(features @ self._words)
        return scores, normalisers(scores, self.decoder.word_scores.bias)


class TransposedWeights(NamedTuple):
    """Matrices of soft attention and the LSTM, from `transposed`.

    state       (n, 4n + A + G) from h to the pre-activations: of the gates i, f, o, g, of the query, of beta (G)
    state_bias  (4n + A + G,)
    context     (D, 4n + m) from beta z to the gates and the deep output; (D, 4n) if the deep output does not read z
    word        (m, 4n) from E y to the gates
    word_bias   (4n,)
    score       u, (A,)
    """

    state: Tensor
    state_bias: Tensor
    context: Tensor
    word: Tensor
    word_bias: Tensor
    score: Tensor


class SoftIncrementalDecoder(IncrementalDecoder):
    """Soft attention with the additive score, and the LSTM: one matrix product of h, one attention step per stem."""

    def __init__(self, captioner: Captioner, matrices: TransposedWeights, words: Tensor, regions: Tensor):
        super().__init__(captioner, words, regions)
        assert isinstance(captioner.decoder, LSTMDecoder)
        self._decoder, self._matrices = captioner.decoder, matrices

    def step(self, state: DecoderState, images: Tensor, stems: Tensor, tokens: Tensor) -> StepOutput:
        (regions, keys, _), matrices, decoder = self.memory, self._matrices, self._decoder
        groups, width = CaptionGroups(images, len(regions)), matrices.word.shape[1]
        with without_autocast(tokens.device):
            # of the P stems: alpha, z, and the terms of h and z in the gates and in the deep output
            read = _product(state.hidden, matrices.state).add_(matrices.state_bias)
            gates, query, beta = read.tensor_split([width, width + len(matrices.score)], dim=1)
            weights = RegionPairs(groups, keys, matrices.score).scores(query).softmax(dim=1)
            context, gate = WeightedSum(groups, regions).read(weights), weights.new_ones(len(weights))
            if beta.shape[1]:
                context *= beta.sigmoid_()
                gate = beta.mean(dim=1)
            seen = _product(context, matrices.context)
            gates.add_(seen[:, :width])
            # of the B captions: the LSTM, with each distinct word multiplied once
            words, which = tokens.unique(return_inverse=True)
            embedded = decoder.embed(words)
            word_gates = _product(embedded, matrices.word).add_(matrices.word_bias)
            gates = gates.index_select(0, stems).add_(word_gates.index_select(0, which))
            state = lstm_in_place(gates, state.cell.index_select(0, stems))
            # the terms of the deep output
            parts = [embedded.index_select(0, which)] if decoder.word_output else []
            parts += [] if decoder.context_output is None else [seen[:, width:].index_select(0, stems)]
            if decoder.hidden_output is not None:
                parts.append(decoder.hidden_output(decoder.hidden_dropout(state.hidden)))
            features = decoder.output_dropout(decoder.activation(sum(parts[1:], parts[0])))
            return StepOutput(*self.score(features), state, weights, gate)


def lstm_in_place(gates: Tensor, cell: Tensor) -> DecoderState:
    """Apply the LSTM cell to the pre-activations (B, 4n), which are overwritten, and the cells (B, n)."""
    width = cell.shape[1]
    admit, forget, output = gates[:, : 3 * width].sigmoid_().chunk(3, dim=1)
    cell = gates[:, 3 * width :].tanh_().mul_(admit).addcmul_(forget, cell)
    return DecoderState(torch.tanh(cell).mul_(output), cell)


@torch.no_grad()
def incremental_decoder(captioner: Captioner) -> Callable[[Tensor], IncrementalDecoder]:
    """Return a function from regions (I, L, D) to an `IncrementalDecoder`; valid until the weights change."""
    attention, decoder = captioner.attention, captioner.decoder
    words = transposed(decoder.word_scores.weight)
    soft = isinstance(attention, SoftAttention) and is_fused_supported(attention, decoder)
    if not soft or words.device.type != "cpu":
        return partial(IncrementalDecoder, captioner, words)
    assert isinstance(attention, SoftAttention)
    assert isinstance(decoder, LSTMDecoder)
    merged, output = weights_of(attention, decoder), decoder.context_output
    seen = merged.context if output is None else torch.cat([merged.context, output.weight.to(merged.context)])
    state, context, word = map(transposed, (merged.state, seen, decoder.read_word.weight))
    bias = merged.bias.to(merged.score.dtype)
    matrices = TransposedWeights(state, bias, context, word, decoder.read_word.bias, merged.score)
    return partial(SoftIncrementalDecoder, captioner, matrices, words)


def transposed(matrix: Tensor) -> Tensor:
    """Return the transposed matrix in the autocast's precision, contiguous for fast products with few rows."""
    [multiplied] = to_multiply(matrix.T)
    return multiplied.contiguous()


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows @ matrix, multiplied in the precision of the matrix."""
    return (rows.to(matrix.dtype) @ matrix).to(rows.dtype)
