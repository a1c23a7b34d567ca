"""The captioner: attention and decoder combined, over all steps of given captions (teacher forcing)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from showattendtell.data.vocabulary import START
from showattendtell.models.attention import Attention, AttentionCache
from showattendtell.models.decoder import Decoder, DecoderState
from showattendtell.models.kernels.packing import Packing
from showattendtell.models.kernels.recurrence import is_fused_supported, unroll, unroll_fused
from showattendtell.types import CaptionerOutput, OutputFeatures, SampledLocations


class Captioner(nn.Module):
    """Predict words from regions. Independent of pixels, files and training.

    Raises:
        ValueError: the attention depends on the words so far, but the decoder reads the image only once.
    """

    def __init__(self, attention: Attention, decoder: Decoder):
        super().__init__()
        if attention.selective and not decoder.reads_context:
            raise ValueError(
                f"{type(decoder).__name__} sees the image once and has no use for {type(attention).__name__}; "
                "use attention=none with it"
            )
        self.attention = attention
        self.decoder = decoder

    def init_state(self, regions: Tensor) -> tuple[AttentionCache, DecoderState]:
        """Return the attention cache and the initial states of the images (I, L, D), one row per image."""
        regions = self.decoder.drop_regions(regions)
        return self.attention.precompute(regions), self.decoder.start(regions)

    def forward(
        self,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        read: Tensor | None = None,
        locations: Tensor | None = None,
        initial: tuple[AttentionCache, DecoderState] | None = None,
    ) -> CaptionerOutput:
        """Score every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image appears once.
            image_index: (B,) the image of each caption.
            read: (B, T) input tokens, one before each target; by default `<start>` and the caption's own words.
            locations: (B, T, H) region indices for hard attention; negative entries are sampled, as are all by default.
            initial: the result of `init_state(regions)`, for calls that share its dropout and its random choices.
        """
        memory, state = initial or self.init_state(regions)
        packing = Packing.of(tokens)
        embedded, word_gates = self.decoder.embed_words(packing.pack(shift_right(tokens) if read is None else read))
        unroll_steps = unroll_fused if is_fused_supported(self.attention, self.decoder) else unroll
        steps = unroll_steps(self.attention, self.decoder, packing, memory, state, word_gates, image_index, locations)
        values = self.decoder.output_features(embedded, steps.hidden, steps.context)
        features = OutputFeatures(values, self.decoder.word_scores.weight, self.decoder.word_scores.bias)
        sample = None if steps.sample is None else SampledLocations(*map(packing.pad, steps.sample))
        return CaptionerOutput(features, packing.places, packing.pad(steps.weights), packing.pad(steps.gates), sample)


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
