"""Attention and decoder, composed: all steps of given captions, or one step at a time."""

import torch
from torch import Tensor, nn

from showattendtell.model.attention import Attention
from showattendtell.model.decoder import Decoder
from showattendtell.model.steps import Memory, State, Step
from showattendtell.records import Sample, Trace
from showattendtell.text.vocabulary import START


class Captioner(nn.Module):
    """From regions to words. It knows nothing of pixels, files or training."""

    def __init__(self, attention: Attention, decoder: Decoder):
        super().__init__()
        if attention.selective and not decoder.looks_on:
            raise ValueError(
                f"{type(decoder).__name__} sees the image once and has no use for {type(attention).__name__}; "
                "take attention=none with it"
            )
        self.attention = attention
        self.decoder = decoder

    def forward(self, regions: Tensor, owners: Tensor, tokens: Tensor) -> Trace:
        """Scores of every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image once.
            owners: (B,) the image of each caption.
        """
        memory, state = self.begin(regions)
        return self.unroll(memory.select(owners), state.select(owners), tokens)

    def unroll(self, memory: Memory, state: State, tokens: Tensor, locations: Tensor | None = None) -> Trace:
        """As `forward`, from the memory and first state of each caption.

        Args:
            locations: (B, T, H) where hard attention is to look; it draws where they are negative.
        """
        embedded = self.decoder.embed(shift_right(tokens))
        word_gates = self.decoder.word_gates(embedded)
        states, glimpses = [], []
        for step in range(tokens.shape[1]):
            given = {} if locations is None else {"locations": locations[:, step]}
            glimpse = self.attention(memory, state, **given)
            state = self.decoder.advance(word_gates[:, step], glimpse.context, state)
            states.append(state.hidden)
            glimpses.append(glimpse)
        hidden = torch.stack(states, dim=1)
        *parts, samples = zip(*glimpses, strict=True)
        context, weights, gates = (torch.stack(part, dim=1) for part in parts)
        logits = self.decoder.score_words(embedded, hidden, context)
        return Trace(logits, weights, gates, None if samples[0] is None else _stack(samples))

    def begin(self, regions: Tensor) -> tuple[Memory, State]:
        """What is needed of the images, (I, L, D): computed once, then selected by row."""
        return self.attention.remember(regions), self.decoder.start(regions)

    def step(self, memory: Memory, state: State, tokens: Tensor) -> Step:
        """One word further: the last words (B,) and the state give the next word's log-probabilities."""
        glimpse = self.attention(memory, state)
        words, which = tokens.unique(return_inverse=True)
        embedded = self.decoder.embed(words)
        state = self.decoder.advance(self.decoder.word_gates(embedded)[which], glimpse.context, state)
        scores = self.decoder.score_words(embedded[which], state.hidden, glimpse.context)
        return Step(scores.log_softmax(dim=-1), state, glimpse.weights, glimpse.gate)


def _stack(samples: tuple[Sample, ...]) -> Sample:
    """Samples of the steps as one, (B, T, H) and (B, T)."""
    return Sample(*(torch.stack(part, dim=1) for part in zip(*samples, strict=True)))


def shift_right(tokens: Tensor) -> Tensor:
    """The inputs for the targets (B, T): `<start>`, then all but the last."""
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
