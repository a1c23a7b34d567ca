"""The captioner: attention and decoder combined, over all steps of given captions (teacher forcing).

Sizes are those of `showattendtell.types`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from showattendtell.data.vocabulary import START
from showattendtell.models.interfaces import Attention, AttentionCache, Decoder, DecoderState, GivenCaptions
from showattendtell.models.kernels.packing import Packing
from showattendtell.types import CaptionerOutput, SampledLocations


class Captioner(nn.Module):
    """Predict words from regions. Independent of pixels, files and training.

    Args:
        padded: whether rows of zeros in the regions are padding of images with fewer regions. Padding has no weight in
            any attention, and does not change the initial state.

    Raises:
        ValueError: attention and decoder do not fit: the attention depends on the words so far, but the decoder reads
            the image only once; or one of both works only with its own counterpart.
    """

    def __init__(self, attention: Attention, decoder: Decoder, padded: bool = False):
        super().__init__()
        self.attention, self.decoder, self.padded = attention, decoder, padded
        decoder.attach(self)
        attention.attach(self)

    def init_state(self, regions: Tensor) -> tuple[AttentionCache, DecoderState]:
        """Return the attention cache and the initial states of the images (I, L, D), one row per image."""
        present = (regions != 0).any(dim=2) if self.padded else None  # before a dropout may set others to 0
        regions = self.decoder.drop_regions(regions)
        cache = self.decoder.reader(self.attention).precompute(regions)
        if present is None:
            return cache, self.decoder.init_state(regions)
        # The state reads the mean over L rows. Padding adds zeros to it, which the factor undoes.
        factor = present.shape[1] / present.sum(dim=1).to(regions.dtype)
        return cache._replace(present=present), self.decoder.init_state(regions * factor[:, None, None])

    def forward(
        self,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        input_tokens: Tensor | None = None,
        locations: Tensor | None = None,
        initial: tuple[AttentionCache, DecoderState] | None = None,
    ) -> CaptionerOutput:
        """Score every word of the captions `tokens` (B, T) given the words before it.

        Args:
            regions: (I, L, D), each image appears once.
            image_index: (B,) the image of each caption.
            input_tokens: (B, T), one before each target; by default `<start>` and the caption's own words.
            locations: (B, T, H) region indices for hard attention; negative entries are sampled, as are all by default.
            initial: the result of `init_state(regions)`, for calls that share its dropout and its random choices.
        """
        cache, state = initial or self.init_state(regions)
        inputs = shift_right(tokens) if input_tokens is None else input_tokens
        packing = Packing.of(tokens)
        captions = GivenCaptions(cache, state, image_index, tokens, inputs, packing, locations)
        steps = self.decoder.unroll(self.attention, captions)
        return CaptionerOutput(
            self.attention.output_features(self, captions, steps),
            packing.indices,
            packing.pad(steps.weights),
            packing.pad(steps.gates),
            None if steps.sample is None else SampledLocations(*map(packing.pad, steps.sample)),
            None if cache.present is None else cache.present[image_index],
        )


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
