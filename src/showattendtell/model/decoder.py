"""What to say: an LSTM over words and contexts, and the deep output layer."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.arguments import Fraction, PositiveInt
from showattendtell.model.attention import REGION_STD

OutputPart = Literal["word", "hidden", "context"]


class State(NamedTuple):
    """The LSTM's h and c, (B, n) each."""

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> "State":
        return State(self.hidden[rows], self.cell[rows])


class LSTMDecoder(nn.Module):
    """LSTM on [E y; h; z] with the deep output p(y) ~ softmax(L_o (E y + L_h h + L_z z)) (Xu et al. 2015, Sec. 3.1.2).

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m.
        hidden_dim: n.
        dropout: on the deep output's sum, and on the mean region that starts the state.
        output: the parts of the deep output's sum.
        tie_embeddings: L_o is E itself, which a small data set can fill better.
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 512,
        hidden_dim: PositiveInt = 512,
        dropout: Fraction = 0.5,
        output: Sequence[OutputPart] = ("word", "hidden", "context"),
        tie_embeddings: bool = False,
    ):
        super().__init__()
        if not output:
            raise ValueError("decoder.output needs at least one of word, hidden, context; got none")
        self.hidden_dim = hidden_dim
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.first_hidden = _two_layers(region_dim, hidden_dim, dropout)
        self.first_cell = _two_layers(region_dim, hidden_dim, dropout)
        self.word_gates = nn.Linear(embedding_dim, 4 * hidden_dim)
        self.hidden_gates = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)
        self.context_gates = nn.Linear(region_dim, 4 * hidden_dim, bias=False)
        self.word_output = "word" in output
        self.hidden_output = nn.Linear(hidden_dim, embedding_dim) if "hidden" in output else None
        self.context_output = nn.Linear(region_dim, embedding_dim, bias=False) if "context" in output else None
        self.word_scores = nn.Linear(embedding_dim, vocabulary_size)
        if tie_embeddings:
            self.word_scores.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        for gate in self.hidden_gates.weight.chunk(4):
            nn.init.orthogonal_(gate)
        nn.init.zeros_(self.word_scores.bias)
        for reader in (self.first_hidden[0], self.first_cell[0], self.context_gates, self.context_output):
            if isinstance(reader, nn.Linear):
                nn.init.normal_(reader.weight, std=REGION_STD)

    def start(self, regions: Tensor) -> State:
        """(I, L, D) to h_0 and c_0, two multi-layer perceptrons of the mean region."""
        mean = self.dropout(regions.mean(dim=1))
        return State(self.first_hidden(mean), self.first_cell(mean))

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens of any shape to their embeddings E y, (..., m)."""
        return self.embedding(tokens)

    def advance(self, word_gates: Tensor, context: Tensor, state: State) -> State:
        """One LSTM step from the word's part of the gates (B, 4n), which needs no recurrence, and z (B, D)."""
        gates = word_gates + self.hidden_gates(state.hidden) + self.context_gates(context)
        admit, forget, output, candidate = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * state.cell + torch.sigmoid(admit) * torch.tanh(candidate)
        return State(torch.sigmoid(output) * torch.tanh(cell), cell)

    def score_words(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """The deep output for any number of steps at once, (..., m), (..., n), (..., D) to logits (..., V)."""
        parts = [embedded] if self.word_output else []
        if self.hidden_output is not None:
            parts.append(self.hidden_output(hidden))
        if self.context_output is not None:
            parts.append(self.context_output(context))
        return self.word_scores(self.dropout(torch.stack(parts).sum(dim=0)))


def _two_layers(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout), nn.Linear(outputs, outputs), nn.Tanh()
    )
