"""The complete model: encoder, captioner, vocabulary and decoding. Sizes are those of `showattendtell.types`."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from showattendtell.decoding.confidence import Confidence, rate_captions
from showattendtell.decoding.decoding import Captions, Decoding, Ensemble
from showattendtell.errors import UserError
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.kernels import autocast_dtype
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.types import CaptionerOutput


class ImageCaptioner(nn.Module):
    """A captioner with the encoder of its images, its vocabulary and its decoding."""

    def __init__(self, encoder: Encoder, captioner: Captioner, vocabulary: Vocabulary, decoding: Decoding):
        super().__init__()
        self.encoder, self.captioner, self.vocabulary, self.decoding = encoder, captioner, vocabulary, decoding

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels (I, 3, H, W) as grids (I, L, D)."""
        grids: Tensor = self.encoder(pixels)
        return grids

    def grids(self, images: Tensor) -> Tensor:
        """Return grids (I, L, D) of pixels (I, 3, H, W); grids of the cache are converted only. They are float32, but
        in training on a GPU in the precision of the autocast."""
        grids = self.encode(images) if images.ndim == 4 else images
        half = autocast_dtype(grids.device) if grids.is_cuda and self.training else None
        return grids.to(half or torch.float32)

    def regions(self, images: Tensor) -> Tensor:
        """Return regions, with position channels, from cached grids (I, L, D) or pixels (I, 3, H, W)."""
        return self.encoder.prepare_regions(self.grids(images))

    def forward(self, images: Tensor, image_index: Tensor, tokens: Tensor) -> CaptionerOutput:
        """Return scores and attention of given captions `tokens` (B, T) (teacher forcing)."""
        return self.captioner(self.regions(images), image_index, tokens)

    def generate(self, images: Tensor) -> Captions:
        """Generate captions of pixels (I, 3, H, W) or cached grids (I, L, D), best first for each image."""
        return ImageCaptionerEnsemble([self]).generate([images])


class ImageCaptionerEnsemble:
    """An ensemble of models with the same vocabulary; the first model's decoding is used.

    Weights are prepared once: create a new ensemble after the weights change.

    Args:
        confidence: that of the first model; by default the confidence of captions is their probability.
    """

    def __init__(self, models: Sequence[ImageCaptioner], confidence: Confidence | None = None):
        self._decoding, self._confidence = models[0].decoding, confidence
        self._models = tuple(models)
        self._ensemble = Ensemble([model.captioner for model in models], self._decoding.precision)

    @torch.no_grad()
    def generate(self, images: Sequence[Tensor], beam_size: int | None = None) -> Captions:
        """Generate captions, best first for each image.

        Args:
            images: the same images for each model, as pixels or grids.
            beam_size: that of the decoding, if it has one; by default its own.

        Raises:
            UserError: as `Decoding.generate`, or the weights of a model are so large that its scores are not finite.
        """
        regions = [model.regions(model_images) for model, model_images in zip(self._models, images, strict=True)]
        decoding: Any = self._decoding
        if beam_size and hasattr(decoding, "beam_size"):
            decoding = replace(decoding, beam_size=beam_size)
        captions = decoding.generate(self._ensemble, regions, self._models[0].vocabulary)
        log_probs = [caption.log_probs for caption in chain.from_iterable(captions)]
        if not all(captions) or not torch.cat(log_probs).isfinite().all():
            raise UserError(
                "the model has no finite probabilities of words: its weights were altered or its training diverged; "
                "use another checkpoint"
            )
        if self._confidence is not None:
            captions = rate_captions(self._models[0].captioner, self._confidence, regions[0], captions)
        return captions
