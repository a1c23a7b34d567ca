"""The decoders that the paper compares itself with: they see the image as one vector."""

import torch
from torch import Tensor, nn

from showattendtell.arguments import Fraction, PositiveInt
from showattendtell.model.decoder import Decoder, lstm
from showattendtell.model.initial import orthogonal_blocks, start_small
from showattendtell.model.steps import State


class NICDecoder(Decoder):
    """An LSTM that is shown the mean region as its first input and never again (Vinyals et al. 2015).

        h_0, c_0 = LSTM(W mean_i a_i)     h_t, c_t = LSTM(E y_{t-1}, h_{t-1})     p(y_t) = softmax(L h_t)

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m.
        hidden_dim: n.
        dropout: on the LSTM's inputs and on h before the output.
    """

    looks_on = False

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 512,
        hidden_dim: PositiveInt = 512,
        dropout: Fraction = 0.5,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        self.image = start_small(nn.Linear(region_dim, embedding_dim))
        self.read_word = nn.Linear(embedding_dim, 4 * hidden_dim)
        self.hidden_gates = orthogonal_blocks(nn.Linear(hidden_dim, 4 * hidden_dim, bias=False))
        self.word_scores = nn.Linear(hidden_dim, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def start(self, regions: Tensor) -> State:
        image = self.word_gates(self.image(regions.mean(dim=1)))
        return lstm(image, image.new_zeros(len(image), self.hidden_dim))

    def word_gates(self, embedded: Tensor) -> Tensor:
        return self.read_word(self.dropout(embedded))

    def advance(self, word_gates: Tensor, context: Tensor, state: State) -> State:
        return lstm(word_gates + self.hidden_gates(state.hidden), state.cell)

    def answer(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return self.dropout(hidden)


class LogBilinearDecoder(Decoder):
    """No recurrence: what is predicted is a vector near the next word's, from the last words and the image (Kiros et
    al. 2014).

        r_t = sum_j C_j E y_{t-j} + C z     p(y_t) = softmax(Q r_t + b)

    The additive variant (MLBL-B) over a window of j = 1 to `window` words, with vectors E for the words that are read
    and Q for those that are predicted (Mnih and Teh 2012). Before the first word the window holds zeros.

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m, the width of E y.
        hidden_dim: n, the width of r and of Q's rows.
        window: the words that are looked back at.
        dropout: on the words' embeddings and on r.
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
        self.words = nn.Linear(window * embedding_dim, hidden_dim)
        self.image = start_small(nn.Linear(region_dim, hidden_dim, bias=False))
        self.word_scores = nn.Linear(hidden_dim, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def start(self, regions: Tensor) -> State:
        """A zero r, and a window of zeros in the cell's place (I, window * m)."""
        return State(
            regions.new_zeros(len(regions), self.hidden_dim),
            regions.new_zeros(len(regions), self.window * self.embedding_dim),
        )

    def word_gates(self, embedded: Tensor) -> Tensor:
        return self.dropout(embedded)

    def advance(self, word_gates: Tensor, context: Tensor, state: State) -> State:
        window = torch.cat([word_gates, state.cell[:, : -self.embedding_dim]], dim=1)
        return State(self.words(window) + self.image(context), window)

    def answer(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return self.dropout(hidden)
