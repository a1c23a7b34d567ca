"""The captioner: attention and decoder combined, over all steps of given captions (teacher forcing)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from showattendtell.data.vocabulary import START
from showattendtell.models.attention import Attention, AttentionCache, StepAttention
from showattendtell.models.decoder import Decoder, DecoderState, RecurrentDecoder
from showattendtell.models.kernels.mixture import MixtureFeatures
from showattendtell.models.kernels.packing import Packing
from showattendtell.models.kernels.recurrence import is_fused_supported, unroll, unroll_fused
from showattendtell.models.latent_attention import MarginalAttention, VariationalAttention
from showattendtell.models.transformer import CrossAttention, TransformerDecoder
from showattendtell.types import CaptionerOutput, OutputFeatures, SampledLocations


class Captioner(nn.Module):
    """Predict words from regions. Independent of pixels, files and training.

    Args:
        padded: whether rows of zeros in the regions are padding of images with fewer regions. Padding has no weight in
            any attention, and does not change the initial state.

    Raises:
        ValueError: attention and decoder do not fit: the attention depends on the words so far, but the decoder reads
            the image only once; or one of both is that of the transformer, and the other is not.
    """

    def __init__(self, attention: Attention, decoder: Decoder, padded: bool = False):
        super().__init__()
        _check_fit(attention, decoder)
        self.attention = attention
        self.decoder = decoder
        self.padded = padded
        self.posterior = attention.inference_network(decoder) if isinstance(attention, VariationalAttention) else None

    def init_state(self, regions: Tensor) -> tuple[AttentionCache, DecoderState]:
        """Return the attention cache and the initial states of the images (I, L, D), one row per image."""
        present = (regions != 0).any(dim=2) if self.padded else None  # before a dropout may set others to 0
        regions = self.decoder.drop_regions(regions)
        cache = self._reader.precompute(regions)
        if present is None:
            return cache, self.decoder.init_state(regions)
        # `start` reads the mean over L rows. Padding adds zeros to it, so that the factor makes it that of the others.
        factor = present.shape[1] / present.sum(dim=1).to(regions.dtype)
        return cache._replace(present=present), self.decoder.init_state(regions * factor[:, None, None])

    def init_state_of_parts(self, regions: Tensor, parts: Tensor) -> tuple[AttentionCache, DecoderState]:
        """Return `init_state(regions[parts])` in evaluation mode, with each region projected once.

        Args:
            regions: (L, D) of one image.
            parts: (R, K) indices of the regions in each part.
        """
        cache = self._reader.precompute_parts(regions, parts)
        return cache, self.decoder.init_state(cache.regions)

    @property
    def _reader(self) -> TransformerDecoder | StepAttention:
        """The module that attends to the regions."""
        reader = self.decoder if isinstance(self.decoder, TransformerDecoder) else self.attention
        assert isinstance(reader, TransformerDecoder | StepAttention)
        return reader

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
        packing, attention, decoder = Packing.of(tokens), self.attention, self.decoder
        input_tokens, sample = shift_right(tokens) if input_tokens is None else input_tokens, None
        present = None if cache.present is None else cache.present[image_index]
        if isinstance(decoder, TransformerDecoder):
            assert isinstance(attention, CrossAttention)
            keys, initial_state = cache.keys[image_index], state.select(image_index)
            output = decoder(input_tokens, keys, initial_state, attention.map, present=present)
            values, weights = decoder.output_features(packing.pack(output.hidden)), output.weights
            weights = packing.pad(packing.pack(weights))
            gates = packing.pad(weights.new_ones(len(values)))
        else:
            assert isinstance(attention, StepAttention)
            assert isinstance(decoder, RecurrentDecoder)
            embedded, word_gates = decoder.embed_words(packing.pack(input_tokens))
            unroll_steps = unroll_fused if is_fused_supported(attention, decoder) else unroll
            steps = unroll_steps(attention, decoder, packing, cache, state, word_gates, image_index, locations)
            weights, gates = packing.pad(steps.weights), packing.pad(steps.gates)
            if isinstance(attention, MarginalAttention):
                word_images = image_index[packing.indices // tokens.shape[1]]
                num_captions = len(tokens) if len(packing.indices) == tokens.numel() else None
                inputs = (cache, word_images, embedded, word_gates, steps.previous, steps.hidden, steps.context)
                mixture = attention.mixture(decoder, *inputs, steps.weights, num_captions)
                log_q = self._log_q(steps.hidden, tokens.flatten()[packing.indices], cache.regions, mixture)
                return CaptionerOutput(mixture, packing.indices, weights, gates, log_q=log_q, present=present)
            values = decoder.output_features(embedded, steps.hidden, steps.context)
            sample = None if steps.sample is None else SampledLocations(*map(packing.pad, steps.sample))
        features = OutputFeatures(values, decoder.word_scores.weight, decoder.word_scores.bias)
        return CaptionerOutput(features, packing.indices, weights, gates, sample, present=present)

    def _log_q(self, hidden: Tensor, words: Tensor, regions: Tensor, mixture: MixtureFeatures) -> Tensor | None:
        """Return log q (N, L) of the inference network, if there is one, for the words (N,) after the states (N, n)."""
        if self.posterior is None:
            return None
        # constants, so that only the inference network learns from samples of q
        rows = mixture.matrix[words]
        log_q: Tensor = self.posterior(hidden.detach(), rows.detach(), regions.detach(), mixture)
        return log_q


def _check_fit(attention: Attention, decoder: Decoder) -> None:
    """Raise a `ValueError` as `Captioner` does."""
    attention_name, decoder_name = type(attention).__name__, type(decoder).__name__
    if isinstance(decoder, TransformerDecoder):
        if not isinstance(attention, CrossAttention):
            raise ValueError(
                f"{decoder_name} attends to the image in its own layers and has no use for {attention_name}; leave "
                "attention= out, or use attention=cross with it"
            )
        if not isinstance(attention.map, str) and attention.map > len(decoder.layers):
            raise ValueError(
                f"attention.map={attention.map} is not a layer of the decoder, which has {len(decoder.layers)}; choose "
                "one of them, last or rollout"
            )
    elif isinstance(attention, CrossAttention):
        raise ValueError(
            f"{attention_name} is part of the transformer decoder, and {decoder_name} is another one; use "
            "decoder=transformer"
        )
    elif attention.selective and isinstance(decoder, RecurrentDecoder) and not decoder.reads_context:
        raise ValueError(
            f"{decoder_name} sees the image once and has no use for {attention_name}; use attention=none with it"
        )
    elif isinstance(attention, MarginalAttention) and isinstance(decoder, RecurrentDecoder):
        attention.check_fit(decoder)


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
