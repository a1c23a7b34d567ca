"""Baseline decoders of the paper, which read the image as one vector, the mean region.

Sizes are those of `showattendtell.types`.
"""

import torch
from torch import Tensor, nn

from showattendtell.models.captioner import lstm
from showattendtell.models.decoder import RecurrentDecoder
from showattendtell.models.initialization import orthogonal_blocks, start_small
from showattendtell.models.interfaces import DecoderState
from showattendtell.models.kernels.products import Linear
from showattendtell.settings import Fraction, PositiveInt


class NICDecoder(RecurrentDecoder):
    """An LSTM that reads the mean region once, as its first input (Vinyals et al. 2015).

        h_0, c_0 = LSTM(W mean_i a_i)     h_t, c_t = LSTM(E y_{t-1}, h_{t-1})     p(y_t) = softmax(L h_t)

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m, the width of the word embeddings.
        hidden_dim: n, the width of the LSTM state.
        dropout: dropout probability on the LSTM's inputs and on h before the output layer.
    """

    reads_context = False

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 512,
        hidden_dim: PositiveInt = 512,
        dropout: Fraction = 0.5,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        self.image = start_small(Linear(region_dim, embedding_dim))
        self.read_word = Linear(embedding_dim, 4 * hidden_dim)
        self.hidden_gates = orthogonal_blocks(Linear(hidden_dim, 4 * hidden_dim, bias=False))
        self.word_scores = Linear(hidden_dim, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def init_state(self, regions: Tensor) -> DecoderState:
        """Return h_0 and c_0, (I, n) each, after the LSTM has read the image in place of a word."""
        gates = self.word_gates(self.image(regions.mean(dim=1)))
        return lstm(gates, gates.new_zeros(len(gates), self.hidden_dim))  # h = 0 adds nothing to the gates

    def word_gates(self, embedded: Tensor) -> Tensor:
        return self.read_word(self.dropout(embedded))

    def step(self, word_gates: Tensor, context: Tensor, state: DecoderState) -> DecoderState:
        return lstm(word_gates + self.hidden_gates(state.hidden), state.cell)

    def output_features(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return self.dropout(hidden)


class LogBilinearDecoder(RecurrentDecoder):
    """Log-bilinear model: predict the vector of the next word from the last words and the image, without recurrence.

        r_t = sum_j C_j E y_{t-j} + C z     p(y_t) = softmax(Q r_t + b)

    This is the additive variant, MLBL-B, of Kiros et al. (2014), over a window of j = 1 to `window` words. Input words
    have vectors E, output words have vectors Q (Mnih and Teh 2012). Before the first word the window holds zeros.

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m, the width of E y.
        hidden_dim: n, the width of r and of Q's rows.
        window: the number of previous words that are read.
        dropout: dropout probability on the word embeddings and on r.
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 512,
        hidden_dim: PositiveInt = 512,
        window: PositiveInt = 5,
        dropout: Fraction = 0.5,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        self.embedding_dim, self.window = embedding_dim, window
        self.words = Linear(window * embedding_dim, hidden_dim)
        self.image = start_small(Linear(region_dim, hidden_dim, bias=False))
        self.word_scores = Linear(hidden_dim, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def init_state(self, regions: Tensor) -> DecoderState:
        """Return the first state: r = 0 (I, n), and a window of zeros (I, window * m) in place of the cell."""
        return DecoderState(
            regions.new_zeros(len(regions), self.hidden_dim),
            regions.new_zeros(len(regions), self.window * self.embedding_dim),
        )

    def word_gates(self, embedded: Tensor) -> Tensor:
        return self.dropout(embedded)

    def step(self, word_gates: Tensor, context: Tensor, state: DecoderState) -> DecoderState:
        window = torch.cat([word_gates, state.cell[:, : -self.embedding_dim]], dim=1)  # the newest word comes first
        return DecoderState(self.words(window) + self.image(context), window)

    def output_features(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return self.dropout(hidden)
