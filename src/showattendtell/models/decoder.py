"""Base classes of decoders, and the LSTM decoder with its initial state and weight initialization (Xu et al. 2015, Sec.
3.1.2).

Sizes are those of `showattendtell.types`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.data.vocabulary import START
from showattendtell.models.kernels.products import Linear
from showattendtell.settings import Fraction, PositiveInt

REGION_STD = 0.01
"""Standard deviation of the weights of layers that read regions. The regions of some networks are so large that larger
weights would saturate every tanh, and the decoder's state would have no effect."""


def start_small(layer: nn.Linear) -> nn.Linear:
    """Initialize the weights of a layer that reads regions with N(0, 0.01^2); return the layer."""
    nn.init.normal_(layer.weight, std=REGION_STD)
    return layer


def orthogonal_blocks(layer: nn.Linear) -> nn.Linear:
    """Initialize the LSTM's recurrent matrix (4n, n) with an orthogonal block (n, n) per gate; return the layer."""
    for block in layer.weight.chunk(4):
        nn.init.orthogonal_(block)
    return layer


def initialize_as_released(model: nn.Module) -> None:
    """Initialize weights as the released code does: square matrices orthogonal, others N(0, 0.01^2), biases 0.

    The recurrent matrix (4n, n) is orthogonal block by block.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            rows, columns = layer.weight.shape
            if rows == columns:
                nn.init.orthogonal_(layer.weight)
            else:
                nn.init.normal_(layer.weight, std=REGION_STD)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] == "hidden_gates" and isinstance(layer, nn.Linear):
            orthogonal_blocks(layer)


class DecoderState(NamedTuple):
    """The decoder's state after the words so far: the LSTM's h and c, (B, n) each.

    Other decoders keep other tensors in these fields, with a row per caption.
    """

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> "DecoderState":
        return DecoderState(self.hidden.index_select(0, rows), self.cell.index_select(0, rows))


class SeparateStart(nn.Module):
    """h_0 and c_0 from the mean region (I, D), by one perceptron each: ReLU layers of width n with dropout, then tanh.

    Args:
        depth: the number of layers of each perceptron, including the tanh layer.
    """

    def __init__(self, region_dim: int, hidden_dim: int, depth: int, dropout: float):
        super().__init__()
        self.hidden, self.cell = (
            nn.Sequential(
                *_relu_layers(region_dim, hidden_dim, depth - 1, dropout),
                _head(region_dim if depth == 1 else hidden_dim, hidden_dim, reads_regions=depth == 1),
            )
            for _ in range(2)
        )

    def forward(self, mean: Tensor) -> DecoderState:
        return DecoderState(self.hidden(mean), self.cell(mean))


class SharedStart(nn.Module):
    """h_0 and c_0 from the mean region (I, D), by two tanh layers on shared ReLU layers of width D (released code).

    Args:
        depth: the number of layers to h_0 or c_0, including the tanh layer.
    """

    def __init__(self, region_dim: int, hidden_dim: int, depth: int, dropout: float):
        super().__init__()
        self.shared = nn.Sequential(*_relu_layers(region_dim, region_dim, depth - 1, dropout))
        self.hidden = _head(region_dim, hidden_dim, reads_regions=depth == 1)
        self.cell = _head(region_dim, hidden_dim, reads_regions=depth == 1)

    def forward(self, mean: Tensor) -> DecoderState:
        shared = self.shared(mean)
        return DecoderState(self.hidden(shared), self.cell(shared))


class LearnedStart(nn.Module):
    """h_0 and c_0 are parameters (n,), the same for all images: the decoder sees an image by attention alone."""

    def __init__(self, hidden_dim: int):
        super().__init__()
        self.hidden, self.cell = (nn.Parameter(torch.zeros(hidden_dim)) for _ in range(2))

    def forward(self, mean: Tensor) -> DecoderState:
        return DecoderState(*(torch.tanh(part).expand(len(mean), -1) for part in (self.hidden, self.cell)))


def _relu_layers(inputs: int, width: int, count: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for i in range(count):
        linear = start_small(Linear(inputs, width)) if i == 0 else Linear(width, width)
        layers += [linear, nn.ReLU(), nn.Dropout(dropout)]
    return layers


def _head(inputs: int, outputs: int, reads_regions: bool) -> nn.Sequential:
    linear = Linear(inputs, outputs)
    return nn.Sequential(start_small(linear) if reads_regions else linear, nn.Tanh())


OutputPart = Literal["word", "hidden", "context"]
DropoutPlace = Literal["regions", "words", "mean", "start", "hidden", "output"]


class Decoder(nn.Module, ABC):
    """Base class of decoders: embeddings, the state before the first word, and the output layer.

    Args:
        vocabulary_size: V.
        embedding_dim: m.
        hidden_dim: n, the width of the layers, or of the state h that attention reads.
    """

    word_scores: nn.Linear

    def __init__(self, vocabulary_size: int, embedding_dim: int, hidden_dim: int):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)
        self.region_dropout = nn.Dropout(0.0)

    def drop_regions(self, regions: Tensor) -> Tensor:
        """Apply `region_dropout` to the regions (I, L, D) that attention and decoder read."""
        if not self.training or not self.region_dropout.p:
            return regions
        # a mask (I, 1, D): a dropped channel is dropped in all regions of the image
        return regions * self.region_dropout(regions.new_ones(len(regions), 1, regions.shape[-1]))

    @abstractmethod
    def init_state(self, regions: Tensor) -> DecoderState:
        """Return the state before the first word, with a row per image, from the regions (I, L, D)."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings E y (..., m) of tokens of any shape."""
        return self.embedding(tokens)


class RecurrentDecoder(Decoder):
    """Base class of recurrent decoders. `step` is the recurrence; everything else is computed for all steps at once.

    A step t reads the word y_{t-1} and the context z_t, which attention computes from h_{t-1}. The arguments are those
    of `Decoder`.
    """

    reads_context = True
    """Whether every step reads its context vector; false if the image is read only once, by `start`."""

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

    @abstractmethod
    def output_features(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the input of `word_scores` for any number of steps, from E y (..., m), h (..., n) and z (..., D)."""

    def region_features(self, regions: Tensor) -> Tensor | None:
        """Return what each region (I, L, D) adds to the input of `word_scores`, (I, L, w), if that input is the sum of
        this and `features_without_region`; None if it is not such a sum, as of a decoder with layers after the sum."""
        return None

    def features_without_region(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the other term of the sum, see `region_features`; the arguments are those of `output_features`."""
        raise NotImplementedError(f"{type(self).__name__} has no sum to take the region out of")

    def score_words(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return the logits of the next word (..., V) from the arguments of `output_features`."""
        return self.word_scores(self.output_features(embedded, hidden, context))


def lstm(gates: Tensor, cell: Tensor) -> DecoderState:
    """Apply the LSTM cell to the pre-activations of the gates (B, 4n) and to c (B, n) (Xu et al. 2015, Eq. 1 to 3).

    c' = sigmoid(f) * c + sigmoid(i) * tanh(g)     h' = sigmoid(o) * tanh(c')
    """
    # input gate, forget gate, output gate, new content
    i, f, o, g = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return DecoderState(torch.sigmoid(o) * torch.tanh(cell), cell)


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
        start: separate hidden layers for h_0 and c_0, or shared ones as in the released code; or learned, the same
            state for all images, so that the decoder sees them by attention alone.
        start_depth: the number of layers from the mean region to h_0.

    Raises:
        ValueError: `output` is empty.
    """

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
        start: Literal["separate", "shared", "learned"] = "separate",
        start_depth: PositiveInt = 2,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        if not output:
            raise ValueError("decoder.output needs at least one of word, hidden, context; got none")
        self.zero_first = first_input == "zero"
        make_start = SharedStart if start == "shared" else SeparateStart
        self.first_state: nn.Module = (
            LearnedStart(hidden_dim)
            if start == "learned"
            else make_start(region_dim, hidden_dim, start_depth, dropout * ("start" in dropout_places))
        )
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

    def step(self, word_gates: Tensor, context: Tensor, state: DecoderState) -> DecoderState:
        return lstm(word_gates + self.hidden_gates(state.hidden) + self.context_gates(context), state.cell)

    def output_features(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        parts = self._output_parts(embedded, hidden)
        if self.context_output is not None:
            parts.append(self.context_output(context))
        return self.output_dropout(self.activation(torch.stack(torch.broadcast_tensors(*parts)).sum(dim=0)))

    def _output_parts(self, embedded: Tensor, hidden: Tensor) -> list[Tensor]:
        """Return the terms of the deep output's sum, without that of the context."""
        parts = [embedded] if self.word_output else []
        if self.hidden_output is not None:
            parts.append(self.hidden_output(self.hidden_dropout(hidden)))
        return parts

    def region_features(self, regions: Tensor) -> Tensor | None:
        """Return L_z a_i (I, L, m), after the dropout of the output: a dropped channel is dropped in all regions of the
        image. None with `output_tanh`, or if the deep output does not read the context."""
        if self.context_output is None or not isinstance(self.activation, nn.Identity):
            return None
        parts = self.context_output(regions)
        return parts * self.output_dropout(parts.new_ones(len(parts), 1, parts.shape[2]))

    def features_without_region(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        parts = self._output_parts(embedded, hidden)
        return self.output_dropout(torch.stack(parts).sum(dim=0)) if parts else torch.zeros_like(embedded)
