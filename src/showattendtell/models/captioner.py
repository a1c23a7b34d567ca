"""The captioner: attention and decoder combined, over all steps of given captions (teacher forcing), and word by word.

Word by word, attention of recurrent decoders reads the state before the last word. Captions of an image that differ
only in their last word, as beams often do, therefore share one *prefix* and one attention step. B captions continue P
prefixes. The other sizes are those of `showattendtell.types`; G is the number of gates on the context: 0, 1 or D.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.models.interfaces import (
    Attention,
    AttentionCache,
    CaptionGrid,
    Decoder,
    DecoderState,
    GivenCaptions,
    Packing,
)
from showattendtell.models.kernels import accelerator, to_multiply, without_autocast
from showattendtell.models.kernels.attention import RegionPairs, weighted_sum
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.products import matmul
from showattendtell.models.kernels.recurrence import RecurrenceWeights
from showattendtell.text.vocabulary import START
from showattendtell.types import CaptionerOutput, SampledLocations


class Captioner(nn.Module):
    """Predict words from regions. Independent of pixels, files and training.

    Raises:
        ValueError: the attention is no `Attention`; or attention and decoder do not fit: the attention depends on the
            words so far, but the decoder reads the image only once; or one of both works only with its own counterpart.
    """

    def __init__(self, attention: Attention, decoder: Decoder):
        super().__init__()
        if not isinstance(attention, Attention):
            wanted = f"{Attention.__module__}.Attention"
            raise ValueError(f"the attention is a {type(attention).__name__}, which is no subclass of {wanted}")
        self.attention, self.decoder = attention, decoder
        decoder.attach(self)
        attention.attach(self)

    def init_state(self, regions: Tensor) -> tuple[AttentionCache, DecoderState]:
        """Return the attention cache and the initial states of the images (I, L, D), one row per image."""
        regions = drop_channels(self.decoder.region_dropout, regions)
        cache = self.decoder.reader(self.attention).precompute(regions)
        return cache, self.decoder.init_state(regions)

    def forward(
        self,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        locations: Tensor | None = None,
    ) -> CaptionerOutput:
        """Score every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image appears once.
            image_index: (B,) the image of each caption.
            locations: (B, T, H) region indices for hard attention; negative entries are sampled, as are all by default.
        """
        cache, state = self.init_state(regions)
        packing = Packing.of(tokens)
        captions = GivenCaptions(cache, state, image_index, shift_right(tokens), packing, locations)
        steps = self.decoder.unroll(self.attention, captions)
        return CaptionerOutput(
            self.decoder.output_layer(steps),
            packing.indices,
            packing.pad(steps.weights),
            packing.pad(steps.gates),
            None if steps.sample is None else SampledLocations(*map(packing.pad, steps.sample)),
        )


@contextmanager
def eval_mode(captioner: Captioner) -> Iterator[None]:
    """Put the captioner in evaluation mode; restore its mode on exit."""
    training = captioner.training
    captioner.eval()
    try:
        yield
    finally:
        captioner.train(training)


def drop_channels(dropout: nn.Dropout, regions: Tensor) -> Tensor:
    """Drop channels of the regions (I, L, D), each in all regions of an image."""
    if not dropout.training or not dropout.p:
        return regions
    return regions * dropout(regions.new_ones(len(regions), 1, regions.shape[2]))


def shift_right(tokens: Tensor) -> Tensor:
    """Return the inputs for the targets (B, T): `<start>`, then all tokens but the last."""
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)


class StepOutput(NamedTuple):
    """One step of incremental decoding: B captions that continue P prefixes.

    scores       (B, V) unnormalized log p of the next word: log p = scores - normalizers
    normalizers  (B,) the log-sum-exp of the scores
    state        of the captions, after their last words
    weights      (B, L) alpha
    gate         (B,) beta
    locations    (B, H) the regions that hard attention sampled; None without sampling
    """

    scores: Tensor
    normalizers: Tensor
    state: DecoderState
    weights: Tensor
    gate: Tensor
    locations: Tensor | None = None


class IncrementalDecoder:
    """Decode images with a captioner, one word at a time, without gradients.

    Args:
        words: the output layer's matrix (w, V), from `transposed`.
        regions: (I, L, D).
    """

    def __init__(self, captioner: Captioner, words: Tensor, regions: Tensor):
        self.attention: Any = captioner.attention
        self.decoder: Any = captioner.decoder
        self.cache, initial_state = captioner.init_state(regions)
        self.initial_state = DecoderState(*(part.to(regions.dtype) for part in initial_state))
        self._words, self._images = words, torch.arange(len(regions), device=regions.device)

    def grid(self, images: Tensor) -> CaptionGrid:
        """Lay out captions or prefixes as a grid with a row per row of the attention cache, which leaves out images
        whose captions are finished.

        Args:
            images: the image of each, ascending.
        """
        unique_images = images.unique_consecutive()
        # copying the cache pays off once half of its images are finished
        if 2 * len(unique_images) <= len(self._images):
            self.cache = self.cache.select(torch.searchsorted(self._images, unique_images))
            self._images = unique_images
        #     images 0 0 0 2 of three  ->  owners 0 0 0 2,  counts 3 0 1,  starts 0 3 3
        owners, last = torch.searchsorted(self._images, images), len(images) - 1
        counts = owners.bincount(minlength=len(self._images))
        starts, columns = counts.cumsum(0) - counts, torch.arange(int(counts.max()), device=images.device)
        rows = starts.unsqueeze(1) + torch.minimum(columns, counts.unsqueeze(1) - 1)
        positions = owners * len(columns) + torch.arange(len(images), device=images.device) - starts[owners]
        return CaptionGrid(rows.clamp(0, last).flatten(), positions)

    def score_next(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the next word (B, V) and their normalizers (B,), from the output layer's inputs
        (B, w)."""
        layer = self.decoder.word_scores
        scores = matmul(features.to(self._words.dtype), self._words).to(layer.weight.dtype).add_(layer.bias)
        return scores, scores.logsumexp(dim=1)

    def step(self, state: DecoderState, images: Tensor, prefix_index: Tensor, tokens: Tensor) -> StepOutput:
        """Decode one word.

        Args:
            state: the states of the prefixes, with P rows.
            images: (P,) the image of each prefix, ascending.
            prefix_index: (B,) the prefix that each caption continues.
            tokens: (B,) the last word of each caption.
        """
        grid = self.grid(images)  # attention takes equally many captions per row of its cache
        output = self.attention(self.cache, state.select(grid.rows))
        positions = grid.positions[prefix_index]
        context = output.context[positions]  # (B, D)
        embedded, word_gates = self.decoder.embed_words(tokens)
        state = self.decoder.step(word_gates, context, state.select(prefix_index))
        scores = self.score_next(self.decoder.output_features(embedded, state.hidden, context))
        locations = None if output.sample is None else output.sample.locations[positions]
        return StepOutput(*scores, state, output.weights[positions], output.gate[positions], locations)


class SoftIncrementalDecoder(IncrementalDecoder):
    """Soft attention with the additive score, and the LSTM: one product of h and one of z per prefix, and the
    compiled loops, which take any number of prefixes per image.

    Args:
        weights: of the recurrence, their matrices transposed; (D, 4n + m) from z to the gates and the deep output, or
            (D, 4n) if the deep output does not read z.
    """

    def __init__(self, captioner: Captioner, weights: RecurrenceWeights, words: Tensor, regions: Tensor):
        super().__init__(captioner, words, regions)
        self._weights = weights

    def step(self, state: DecoderState, images: Tensor, prefix_index: Tensor, tokens: Tensor) -> StepOutput:
        (regions, keys, _), decoder = self.cache, self.decoder
        state_matrix, state_bias, context_matrix, score = self._weights
        width = 4 * decoder.hidden_dim
        embedded, word_gates = decoder.embed_words(tokens)
        with without_autocast(tokens.device):
            # of the P prefixes: alpha, z, and the terms of h and z in the gates and in the deep output
            from_hidden = _product(state.hidden, state_matrix).add_(state_bias)
            gates, query, beta = from_hidden.tensor_split([width, width + len(score)], dim=1)
            if (kernels := accelerator(regions)) is not None:
                weights, context = kernels.score_and_read(keys.values, regions, images, query, score)
            else:
                groups = CaptionGroups(images, len(regions))
                weights = RegionPairs(groups, keys.values, keys.decays, score).scores(query).softmax(dim=1)
                context = weighted_sum(groups, regions, weights)
            gate = weights.new_ones(len(weights))
            if beta.shape[1]:
                context *= beta.sigmoid_()
                gate = beta.mean(dim=1)
            from_context = _product(context, context_matrix)
            gates.add_(from_context[:, :width])
            # of the B captions: the LSTM
            gates = gates.index_select(0, prefix_index).add_(word_gates)
            state = lstm(gates, state.cell.index_select(0, prefix_index))
            parts = decoder.output_parts(embedded, state.hidden)
            if decoder.context_output is not None:
                parts.insert(decoder.word_output, from_context[:, width:].index_select(0, prefix_index))
            features = decoder.output_dropout(decoder.activation(sum(parts[1:], parts[0])))
            weights, gate = weights.index_select(0, prefix_index), gate.index_select(0, prefix_index)
            return StepOutput(*self.score_next(features), state, weights, gate)


def lstm(gates: Tensor, cell: Tensor) -> DecoderState:
    """Apply the LSTM cell to the pre-activations of the gates (B, 4n) and to c (B, n) (Xu et al. 2015, Eq. 1 to 3).

    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)     h' = sigmoid(o) * tanh(c')
    """
    # input gate, forget gate, output gate, new content
    i, f, o, g = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return DecoderState(torch.sigmoid(o) * torch.tanh(cell), cell)


def transposed(matrix: Tensor) -> Tensor:
    """Return the transposed matrix in the autocast's precision, contiguous for fast products with few rows."""
    [multiplied] = to_multiply(matrix.T)
    return multiplied.contiguous()


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows @ matrix, multiplied in the precision of the matrix."""
    return matmul(rows.to(matrix.dtype), matrix).to(rows.dtype)
