"""Attention and decoder, composed: all steps of given captions, or one step at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from showattendtell.model.attention import Attention
from showattendtell.model.decoder import Decoder
from showattendtell.model.packing import Packing
from showattendtell.model.steps import Memory, State
from showattendtell.model.unroll import all_steps, in_one_go, step_by_step
from showattendtell.records import Answers, Sample, Trace
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

    def forward(self, regions: Tensor, owners: Tensor, tokens: Tensor, read: Tensor | None = None) -> Trace:
        """Scores of every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image once.
            owners: (B,) the image of each caption.
            read: (B, T) what stands before each of the words instead of the caption's own.
        """
        memory, state = self.begin(regions)
        return self.unroll(memory, state, owners, tokens, read=read)

    def unroll(
        self,
        memory: Memory,
        state: State,
        owners: Tensor,
        tokens: Tensor,
        locations: Tensor | None = None,
        read: Tensor | None = None,
    ) -> Trace:
        """As `forward`, from the memory and first states of the images.

        Args:
            locations: (B, T, H) where hard attention is to look; it draws where they are negative.
        """
        packing = Packing.of(tokens)
        embedded, word_gates = self.decoder.take_in(packing.pack(shift_right(tokens) if read is None else read))
        given = (self.attention, self.decoder, packing)
        if in_one_go(self.attention, self.decoder):
            course = all_steps(*given, memory, state, word_gates, owners, locations)
        else:
            course = step_by_step(*given, memory.select(owners), state.select(owners), word_gates, locations)
        values = self.decoder.answer(embedded, course.hidden, course.context)
        answers = Answers(values, self.decoder.word_scores.weight, self.decoder.word_scores.bias)
        sample = None if course.sample is None else Sample(*map(packing.pad, course.sample))
        return Trace(answers, packing.places, packing.pad(course.weights), packing.pad(course.gates), sample)

    def begin(self, regions: Tensor) -> tuple[Memory, State]:
        """What is needed of the images, (I, L, D): computed once, then selected by row."""
        regions = self.decoder.see(regions)
        return self.attention.remember(regions), self.decoder.start(regions)


@contextmanager
def as_written(captioner: Captioner) -> Iterator[None]:
    """The captioner as it is outside training."""
    training = captioner.training
    captioner.eval()
    try:
        yield
    finally:
        captioner.train(training)


def shift_right(tokens: Tensor) -> Tensor:
    """The inputs for the targets (B, T): `<start>`, then all but the last."""
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
