"""Attention and decoder, composed: all steps of given captions, or one step at a time."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.model.attention import Memory, SoftAttention
from showattendtell.model.decoder import LSTMDecoder, State
from showattendtell.records import Trace
from showattendtell.text.vocabulary import START


class Step(NamedTuple):
    """One generated step: log p of every word (B, V), the new state, alpha (B, L) and beta (B,)."""

    log_probabilities: Tensor
    state: State
    weights: Tensor
    gate: Tensor


class Captioner(nn.Module):
    """From regions to words. It knows nothing of pixels, files or training."""

    def __init__(self, attention: SoftAttention, decoder: LSTMDecoder):
        super().__init__()
        self.attention = attention
        self.decoder = decoder

    def forward(self, regions: Tensor, owners: Tensor, tokens: Tensor) -> Trace:
        """Scores of every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image once.
            owners: (B,) the image of each caption.
        """
        memory = self.attention.remember(regions).select(owners)
        state = self.decoder.start(regions).select(owners)
        embedded = self.decoder.embed(shift_right(tokens))
        word_gates = self.decoder.word_gates(embedded)
        steps = []
        for step in range(tokens.shape[1]):
            glimpse = self.attention(memory, state.hidden)
            state = self.decoder.advance(word_gates[:, step], glimpse.context, state)
            steps.append((state.hidden, *glimpse))
        hidden, context, weights, gates = (torch.stack(parts, dim=1) for parts in zip(*steps, strict=True))
        return Trace(self.decoder.score_words(embedded, hidden, context), weights, gates)

    def begin(self, regions: Tensor) -> tuple[Memory, State]:
        """What generation needs of the images, (I, L, D): computed once, then selected by row."""
        return self.attention.remember(regions), self.decoder.start(regions)

    def step(self, memory: Memory, state: State, tokens: Tensor) -> Step:
        """One word further: the last words (B,) and the state give the next word's log-probabilities."""
        glimpse = self.attention(memory, state.hidden)
        embedded = self.decoder.embed(tokens)
        state = self.decoder.advance(self.decoder.word_gates(embedded), glimpse.context, state)
        scores = self.decoder.score_words(embedded, state.hidden, glimpse.context)
        return Step(scores.log_softmax(dim=-1), state, glimpse.weights, glimpse.gate)


def shift_right(tokens: Tensor) -> Tensor:
    """The inputs for the targets (B, T): `<start>`, then all but the last."""
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
