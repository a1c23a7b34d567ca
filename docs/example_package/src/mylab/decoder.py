"""A decoder with a GRU in place of the LSTM."""

import torch
from torch import Tensor, nn

from showattendtell.models.decoder import RecurrentDecoder
from showattendtell.models.initialization import start_small
from showattendtell.models.interfaces import DecoderState
from showattendtell.settings import Fraction, PositiveInt


class GRUDecoder(RecurrentDecoder):
    """A GRU on the word and the context: h_t = GRU([E y_{t-1}; z_t], h_{t-1}), p(y_t) = softmax(L_o [h_t; z_t]).

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m, the width of the word embeddings.
        hidden_dim: n, the width of the state.
        dropout: dropout probability before the output layer.
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 256,
        hidden_dim: PositiveInt = 256,
        dropout: Fraction = 0.5,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        self.first = start_small(nn.Linear(region_dim, hidden_dim))
        self.read_context = start_small(nn.Linear(region_dim, embedding_dim))
        self.cell = nn.GRUCell(2 * embedding_dim, hidden_dim)
        self.word_scores = nn.Linear(hidden_dim + embedding_dim, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def init_state(self, regions: Tensor) -> DecoderState:
        """Return h_0 (I, n); the cell, which a GRU does not have, has width 0."""
        hidden = torch.tanh(self.first(regions.mean(dim=1)))
        return DecoderState(hidden, hidden[:, :0])

    def word_gates(self, embedded: Tensor) -> Tensor:
        return embedded

    def step(self, word_gates: Tensor, context: Tensor, state: DecoderState) -> DecoderState:
        hidden = self.cell(torch.cat([word_gates, self.read_context(context)], dim=1), state.hidden)
        return DecoderState(hidden, state.cell)

    def output_features(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        return self.dropout(torch.cat([hidden, self.read_context(context)], dim=1))
