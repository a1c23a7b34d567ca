"""Captioner: attention and decoder combined, for all steps of given captions or for one step at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from showattendtell.data.vocabulary import START
from showattendtell.models.attention import Attention
from showattendtell.models.decoder import Decoder
from showattendtell.models.kernels.packing import Packing
from showattendtell.models.outputs import AttentionCache, DecoderState
from showattendtell.models.unroll import is_fused_supported, unroll_fused, unroll_steps
from showattendtell.types import CaptionerOutput, OutputFeatures, SampledLocations


class Captioner(nn.Module):
    """Predict words from regions. Independent of pixels, files and training."""

    def __init__(self, attention: Attention, decoder: Decoder):
        super().__init__()
        if attention.selective and not decoder.reads_context:
            raise ValueError(
                f"{type(decoder).__name__} sees the image once and has no use for {type(attention).__name__}; "
                "take attention=none with it"
            )
        self.attention = attention
        self.decoder = decoder

    def forward(
        self, regions: Tensor, image_index: Tensor, tokens: Tensor, read: Tensor | None = None
    ) -> CaptionerOutput:
        """Score every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image appears once.
            image_index: (B,) the image of each caption.
            read: (B, T) input tokens, one before each target; by default `<start>` and the caption's own words.
        """
        memory, state = self.init_state(regions)
        return self.unroll(memory, state, image_index, tokens, read=read)

    def unroll(
        self,
        memory: AttentionCache,
        state: DecoderState,
        image_index: Tensor,
        tokens: Tensor,
        locations: Tensor | None = None,
        read: Tensor | None = None,
    ) -> CaptionerOutput:
        """Run `forward` from the memory and the initial states of the images.

        Args:
            locations: (B, T, H) region indices for hard attention; negative entries are sampled.
        """
        packing = Packing.of(tokens)
        embedded, word_gates = self.decoder.embed_words(packing.pack(shift_right(tokens) if read is None else read))
        given = (self.attention, self.decoder, packing)
        if is_fused_supported(self.attention, self.decoder):
            course = unroll_fused(*given, memory, state, word_gates, image_index, locations)
        else:
            course = unroll_steps(*given, memory.select(image_index), state.select(image_index), word_gates, locations)
        values = self.decoder.output_features(embedded, course.hidden, course.context)
        answers = OutputFeatures(values, self.decoder.word_scores.weight, self.decoder.word_scores.bias)
        sample = None if course.sample is None else SampledLocations(*map(packing.pad, course.sample))
        return CaptionerOutput(answers, packing.places, packing.pad(course.weights), packing.pad(course.gates), sample)

    def init_state(self, regions: Tensor) -> tuple[AttentionCache, DecoderState]:
        """Return the memory and the initial states of the images (I, L, D), one row per image."""
        regions = self.decoder.drop_regions(regions)
        return self.attention.precompute(regions), self.decoder.start(regions)


@contextmanager
def eval_mode(captioner: Captioner) -> Iterator[None]:
    """Put the captioner in evaluation mode; restore its mode on exit."""
    training = captioner.training
    captioner.eval()
    try:
        yield
    finally:
        captioner.train(training)


def shift_right(tokens: Tensor) -> Tensor:
    """Return the inputs for the targets (B, T): `<start>`, then all tokens but the last."""
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
