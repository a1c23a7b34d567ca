"""Captions that are being written: what attention and decoder make of the words so far, a word at a time.

Where a captioner looks depends on all words but the last. So captions of an image that differ in their last word alone,
as beams often do, are one *stem* with one look. B captions continue P stems.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.model.additive import Pairs
from showattendtell.model.attention import Attention, SoftAttention
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import Decoder, LSTMDecoder
from showattendtell.model.likelihood import normalisers
from showattendtell.model.loops import Groups
from showattendtell.model.precision import to_multiply, without_autocast
from showattendtell.model.reading import Reading
from showattendtell.model.steps import Glimpse, State, Step
from showattendtell.model.unroll import in_one_go, weights_of
from showattendtell.records import Sample


class Narration:
    """What a captioner says of images (I, L, D), without gradients.

    Args:
        words: the matrix of the words' scores, as `transposed` makes it.
    """

    def __init__(self, captioner: Captioner, words: Tensor, regions: Tensor):
        self.attention, self.decoder = captioner.attention, captioner.decoder
        self.memory, first = captioner.begin(regions)
        self.first = State(*(part.to(regions.dtype) for part in first))
        self._images = torch.arange(len(regions), device=regions.device)
        self._words, self._room = words, regions.new_empty(0, words.shape[1])

    def step(self, state: State, images: Tensor, stems: Tensor, tokens: Tensor) -> Step:
        """One word further; the scores are overwritten by the next step.

        Args:
            state: of the stems, (P, n).
            images: (P,) the image of each, ascending.
            stems: (B,) which of them each caption continues.
            tokens: (B,) its last word.
        """
        glimpse = self.look(state, images)
        context = glimpse.context.index_select(0, stems)
        embedded, word_gates = self.decoder.take_in(tokens)
        state = self.decoder.advance(word_gates, context, state.select(stems))
        scores = self.score(self.decoder.answer(embedded, state.hidden, context))
        locations = None if glimpse.sample is None else glimpse.sample.locations
        return Step(*scores, state, glimpse.weights, glimpse.gate, locations)

    def look(self, state: State, images: Tensor) -> Glimpse:
        """Attention takes as many stems of every image: the last of each stands for those that it lacks."""
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
        rows = places.repeat_interleave(counts) * len(number) + within
        sample = None if glimpse.sample is None else Sample(*(part[rows] for part in glimpse.sample))
        return Glimpse(glimpse.context[rows], glimpse.weights[rows], glimpse.gate[rows], sample)

    def score(self, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the next word (B, V) and their normalisers (B,)."""
        if len(self._room) < len(answers):
            self._room = self._room.new_empty(len(answers), self._room.shape[1])
        scores, answers = self._room[: len(answers)], answers.to(self._words.dtype)
        if scores.dtype == answers.dtype:
            torch.mm(answers, self._words, out=scores)
        else:
            scores.copy_(answers @ self._words)
        return scores, normalisers(scores, self.decoder.word_scores.bias)


class Matrices(NamedTuple):
    """Soft attention's and the LSTM's, as `transposed` makes them.

    state       (n, 4n + A + G) from h to the gates' sums i, f, o, g, to the query and to the G sums of beta
    state_bias  (4n + A + G,)
    context     (D, 4n + m) from beta z to the gates' sums and to the deep output; (D, 4n) where that reads none
    word        (m, 4n) from E y to the gates' sums
    word_bias   (4n,)
    score       u, (A,)
    """

    state: Tensor
    state_bias: Tensor
    context: Tensor
    word: Tensor
    word_bias: Tensor
    score: Tensor

    @classmethod
    def of(cls, attention: Attention, decoder: Decoder) -> "Matrices":
        assert isinstance(attention, SoftAttention)
        assert isinstance(decoder, LSTMDecoder)
        merged, output = weights_of(attention, decoder), decoder.context_output
        seen = merged.context if output is None else torch.cat([merged.context, output.weight.to(merged.context)])
        state, context, word = map(transposed, (merged.state, seen, decoder.read_word.weight))
        bias = merged.bias.to(merged.score.dtype)
        return cls(state, bias, context, word, decoder.read_word.bias, merged.score)


class SoftNarration(Narration):
    """Soft attention by the additive score and the LSTM, with one product of h and no more looks than stems."""

    def __init__(self, captioner: Captioner, matrices: Matrices, words: Tensor, regions: Tensor):
        super().__init__(captioner, words, regions)
        assert isinstance(captioner.decoder, LSTMDecoder)
        self._decoder, self._matrices = captioner.decoder, matrices

    def step(self, state: State, images: Tensor, stems: Tensor, tokens: Tensor) -> Step:
        with without_autocast(tokens.device):
            glimpse, gates, output = self._look(state.hidden, images)
            words, which = tokens.unique(return_inverse=True)
            embedded = self.decoder.embed(words)
            word_gates = _product(embedded, self._matrices.word).add_(self._matrices.word_bias)
            gates = gates.index_select(0, stems).add_(word_gates.index_select(0, which))
            state = lstm_in_place(gates, state.cell.index_select(0, stems))
            answers = self._answer(embedded.index_select(0, which), state.hidden, output.index_select(0, stems))
            return Step(*self.score(answers), state, glimpse.weights, glimpse.gate)

    def _look(self, hidden: Tensor, images: Tensor) -> tuple[Glimpse, Tensor, Tensor]:
        """And what h and z give to the gates' sums, (P, 4n), and z to the deep output, (P, m) or (P, 0)."""
        (regions, keys, _), matrices = self.memory, self._matrices
        groups, width = Groups(images, len(regions)), matrices.word.shape[1]
        read = _product(hidden, matrices.state).add_(matrices.state_bias)
        gates, query, beta = read.tensor_split([width, width + len(matrices.score)], dim=1)
        weights = Pairs(groups, keys, matrices.score).scores(query).softmax(dim=1)
        context, gate = Reading(groups, regions).read(weights), weights.new_ones(len(weights))
        if beta.shape[1]:
            context *= beta.sigmoid_()
            gate = beta.mean(dim=1)
        seen = _product(context, matrices.context)
        return Glimpse(context, weights, gate), gates.add_(seen[:, :width]), seen[:, width:]

    def _answer(self, embedded: Tensor, hidden: Tensor, output: Tensor) -> Tensor:
        """The deep output (B, m), to which z gives `output`."""
        decoder = self._decoder
        parts = [embedded] if decoder.word_output else []
        parts += [output] if output.shape[1] else []
        parts += [] if decoder.hidden_output is None else [decoder.hidden_output(decoder.hidden_dropout(hidden))]
        return decoder.output_dropout(decoder.activation(sum(parts[1:], parts[0])))


def lstm_in_place(gates: Tensor, cell: Tensor) -> State:
    """The LSTM's step from the gates' sums (B, 4n), which it overwrites, and the cells (B, n)."""
    width = cell.shape[1]
    admit, forget, output = gates[:, : 3 * width].sigmoid_().chunk(3, dim=1)
    cell = gates[:, 3 * width :].tanh_().mul_(admit).addcmul_(forget, cell)
    return State(torch.tanh(cell).mul_(output), cell)


@torch.no_grad()
def narrator(captioner: Captioner) -> Callable[[Tensor], Narration]:
    """What makes of regions (I, L, D) a narration, for as long as the captioner's weights stay as they are."""
    attention, decoder = captioner.attention, captioner.decoder
    words = transposed(decoder.word_scores.weight)
    soft = isinstance(attention, SoftAttention) and in_one_go(attention, decoder)
    if soft and words.device.type == "cpu":
        return partial(SoftNarration, captioner, Matrices.of(attention, decoder), words)
    return partial(Narration, captioner, words)


def transposed(matrix: Tensor) -> Tensor:
    """In the precision of an autocast, and laid out so that products with few rows take the least time."""
    [multiplied] = to_multiply(matrix.T)
    return multiplied.contiguous()


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """In the precision of the matrix."""
    return (rows.to(matrix.dtype) @ matrix).to(rows.dtype)
