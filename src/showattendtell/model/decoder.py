"""What to say: an LSTM over words and contexts, and the deep output layer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.arguments import Fraction, PositiveInt
from showattendtell.model.initial import orthogonal_blocks, start_small
from showattendtell.model.start import SeparateStart, SharedStart
from showattendtell.model.steps import State
from showattendtell.text.vocabulary import START

OutputPart = Literal["word", "hidden", "context"]
DropoutPlace = Literal["regions", "words", "mean", "start", "hidden", "output"]


class Decoder(nn.Module, ABC):
    """What every decoder is. A step is `advance`, and what needs no recurrence is done for all steps at once.

    Args:
        vocabulary_size: V.
        embedding_dim: m.
        hidden_dim: n, the width of the state h that attention reads.
    """

    word_scores: nn.Linear
    looks_on = True
    """Whether it reads the context of every step, and not of the first alone."""

    def __init__(self, vocabulary_size: int, embedding_dim: int, hidden_dim: int):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)

    def see(self, regions: Tensor) -> Tensor:
        """What attention and decoder are given of the regions (I, L, D)."""
        return regions

    @abstractmethod
    def start(self, regions: Tensor) -> State:
        """(I, L, D) to the state before the first word, (I, n) each."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens of any shape to their embeddings E y, (..., m)."""
        return self.embedding(tokens)

    def take_in(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """E y (N, m) of tokens (N,), and what `advance` needs of them (N, ...)."""
        embedded = self.embed(tokens)
        return embedded, self.word_gates(embedded)

    @abstractmethod
    def word_gates(self, embedded: Tensor) -> Tensor:
        """What `advance` needs of the words, (..., m) to any last width."""

    @abstractmethod
    def advance(self, word_gates: Tensor, context: Tensor, state: State) -> State:
        """One step, from the word's part (B, ...), z (B, D) and the state before."""

    @abstractmethod
    def answer(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """What `word_scores` scores the next word from, for any number of steps at once: (..., m), (..., n), (..., D)
        to any last width."""

    def score_words(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Logits of the next word (..., V)."""
        return self.word_scores(self.answer(embedded, hidden, context))


def lstm(gates: Tensor, cell: Tensor) -> State:
    """c' = f * c + i * g and h' = o * tanh(c') from the gates' sums i, f, o, g (B, 4n)."""
    admit, forget, output, candidate = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(admit) * torch.tanh(candidate)
    return State(torch.sigmoid(output) * torch.tanh(cell), cell)


class LSTMDecoder(Decoder):
    """LSTM on [E y; h; z] with the deep output p(y) ~ softmax(L_o (E y + L_h h + L_z z)) (Xu et al. 2015, Sec. 3.1.2).

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m.
        hidden_dim: n.
        dropout: the share that is dropped at each place of `dropout_places`.
        dropout_places: channels of an image's regions, in all of them alike; words' embeddings; the mean region that
            starts the state, the hidden layers that do it, h before the deep output, and the deep output's sum (behind
            its tanh).
        output: the parts of the deep output's sum.
        output_tanh: p(y) ~ softmax(L_o tanh(...)), as in the released code.
        tie_embeddings: L_o is E itself, which a small data set can fill better.
        first_input: the embedding before the first word: that of `<start>`, or zero as in the released code.
        start: whether h_0 and c_0 have hidden layers of their own, or share them as in the released code.
        start_depth: the layers from the mean region to h_0.
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
        start: Literal["separate", "shared"] = "separate",
        start_depth: PositiveInt = 2,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        if not output:
            raise ValueError("decoder.output needs at least one of word, hidden, context; got none")
        self.zero_first = first_input == "zero"
        make_start = SharedStart if start == "shared" else SeparateStart
        self.first_state = make_start(region_dim, hidden_dim, start_depth, dropout * ("start" in dropout_places))
        self.read_word = nn.Linear(embedding_dim, 4 * hidden_dim)
        self.hidden_gates = orthogonal_blocks(nn.Linear(hidden_dim, 4 * hidden_dim, bias=False))
        self.context_gates = start_small(nn.Linear(region_dim, 4 * hidden_dim, bias=False))
        self.word_output = "word" in output
        self.hidden_output = nn.Linear(hidden_dim, embedding_dim) if "hidden" in output else None
        reads_context = "context" in output
        self.context_output = start_small(nn.Linear(region_dim, embedding_dim, bias=False)) if reads_context else None
        self.activation = nn.Tanh() if output_tanh else nn.Identity()
        self.word_scores = nn.Linear(embedding_dim, vocabulary_size)
        nn.init.zeros_(self.word_scores.bias)
        if tie_embeddings:
            self.word_scores.weight = self.embedding.weight
        self.region_dropout, self.word_dropout, self.mean_dropout, self.hidden_dropout, self.output_dropout = (
            nn.Dropout(dropout * (place in dropout_places))
            for place in ("regions", "words", "mean", "hidden", "output")
        )

    def see(self, regions: Tensor) -> Tensor:
        if not self.training or not self.region_dropout.p:
            return regions
        return regions * self.region_dropout(regions.new_ones(len(regions), 1, regions.shape[-1]))

    def start(self, regions: Tensor) -> State:
        """(I, L, D) to h_0 and c_0, from the mean region."""
        return self.first_state(self.mean_dropout(regions.mean(dim=1)))

    def embed(self, tokens: Tensor) -> Tensor:
        embedded = self.word_dropout(super().embed(tokens))
        return embedded * (tokens != START).unsqueeze(-1) if self.zero_first else embedded

    def take_in(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Each word once, however often it stands among the tokens, unless each of them has a dropout of its own."""
        dropped = self.training and self.word_dropout.p > 0
        if dropped or tokens.device.type != "cpu":  # a GPU would have to wait for how many words there are
            return super().take_in(tokens)
        words, which = tokens.unique(return_inverse=True)
        embedded, gates = super().take_in(words)
        return F.embedding(which, embedded), F.embedding(which, gates)

    def word_gates(self, embedded: Tensor) -> Tensor:
        """The words' part of the gates' sums, (..., 4n)."""
        return self.read_word(embedded)

    def advance(self, word_gates: Tensor, context: Tensor, state: State) -> State:
        return lstm(word_gates + self.hidden_gates(state.hidden) + self.context_gates(context), state.cell)

    def answer(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        parts = [embedded] if self.word_output else []
        if self.hidden_output is not None:
            parts.append(self.hidden_output(self.hidden_dropout(hidden)))
        if self.context_output is not None:
            parts.append(self.context_output(context))
        return self.output_dropout(self.activation(torch.stack(parts).sum(dim=0)))
