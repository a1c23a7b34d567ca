"""The complete model: encoder, captioner, vocabulary and decoding; and the calibration of a trained model: a map of the
word probabilities, and the distance of images from the training images.

Sizes are those of `showattendtell.types`; K is the number of principal directions of a calibration.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize
from torch.nn.utils.rnn import pad_sequence

from showattendtell.data.vocabulary import PAD, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Captions, Decoding, Ensemble
from showattendtell.errors import UserError
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.kernels import autocast_dtype
from showattendtell.types import CaptionerOutput


class Calibration(nn.Module):
    """Calibrated probabilities of words, and how unlike the training images an image is.

    The probability p of the most probable word becomes q (beta calibration, Kull et al. 2017), with a, b >= 0, so that
    q rises with p:

        logit q = a log p - b log(1 - p) + c

    The other words share 1 - q in proportion to their probabilities, but none gets more than q. What that leaves is
    shared equally by all V words. No order of words changes.

    The unlikeness of an image is the squared distance of its mean region, scaled to length 1, from the plane of the K
    principal directions of the training images (the residual of a principal component analysis):

        u = m / |m|     m = mean_i a_i     d = u - mu     unlikeness = |d|^2 - |W^T d|^2

    Args:
        curve: (3,) a, b and c.
        mean: (D,) mu, the mean of u over the training images.
        directions: (D, K) W, orthonormal.
        threshold: (), the unlikeness above which the model is unsure.
    """

    curve: Tensor
    mean: Tensor
    directions: Tensor
    threshold: Tensor

    def __init__(self, curve: Tensor, mean: Tensor, directions: Tensor, threshold: Tensor):
        super().__init__()
        for name, values in zip(NAMES, (curve, mean, directions, threshold), strict=True):
            self.register_buffer(name, values.float())

    def forward(self, regions: Tensor) -> Tensor:
        """Return the unlikeness (I,) of images with these regions (I, L, D)."""
        difference = unit_mean(regions) - self.mean
        inside = difference @ self.directions
        return difference.square().sum(dim=1) - inside.square().sum(dim=1)

    def calibrate(self, log_probs: Tensor) -> Tensor:
        """Return calibrated log p (..., V) of the words from log p (..., V)."""
        best, word = log_probs.max(dim=-1, keepdim=True)
        others = log_probs.scatter(-1, word, -torch.inf)
        rest = others.logsumexp(dim=-1, keepdim=True)  # log(1 - p), also for p near 1
        a, b, c = self.curve
        log_odds = a * best - b * rest + c
        log_q, log_share = logsigmoid(log_odds), logsigmoid(-log_odds)
        factor = log_share - rest
        excess = (others.amax(dim=-1, keepdim=True) + factor - log_q).clamp(min=0)  # of the runner-up
        scaled = (others + factor - excess).scatter(-1, word, log_q)
        left = log_share + torch.log(-torch.expm1(-excess) / log_probs.shape[-1])
        return torch.logaddexp(scaled, left)


NAMES = ("curve", "mean", "directions", "threshold")
"""Names of the tensors of a `Calibration`."""

CURVE_LIMIT = 9
"""Largest absolute value in the curve of a `Calibration`."""


def unit_mean(regions: Tensor) -> Tensor:
    """Return the mean of regions (I, L, D), scaled to length 1: (I, D)."""
    return normalize(regions.mean(dim=1), dim=1)


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
        calibration: that of the first model, which then gives the captions their confidence.
    """

    def __init__(self, models: Sequence[ImageCaptioner], calibration: Calibration | None = None):
        self._decoding, self._calibration = models[0].decoding, calibration
        self._models = tuple(models)
        self._ensemble = Ensemble([model.captioner for model in models], self._decoding.precision)

    @torch.no_grad()
    def generate(self, images: Sequence[Tensor], beam_size: int | None = None) -> Captions:
        """Generate captions, best first for each image.

        Args:
            images: the same images for each model, as pixels or grids.
            beam_size: of beam search; by default as in the decoding. Ignored by other decodings.

        Raises:
            UserError: as `Decoding.generate`, or the weights of a model are so large that its scores are not finite.
        """
        regions = [model.regions(model_images) for model, model_images in zip(self._models, images, strict=True)]
        decoding = self._decoding
        if beam_size and isinstance(decoding, BeamSearch):
            decoding = replace(decoding, beam_size=beam_size)
        captions = decoding.generate(self._ensemble, regions, self._models[0].vocabulary)
        log_probs = [caption.log_probs for caption in chain.from_iterable(captions)]
        if not all(captions) or not torch.cat(log_probs).isfinite().all():
            raise UserError(
                "the model has no finite probabilities of words: its weights were altered or its training diverged; "
                "use another checkpoint"
            )
        if self._calibration is not None:
            captions = calibrate_captions(self._models[0].captioner, self._calibration, regions[0], captions)
        return captions


@torch.no_grad()
def calibrate_captions(captioner: Captioner, calibration: Calibration, regions: Tensor, captions: Captions) -> Captions:
    """Return the captions of images with their calibrated log p, and whether the model is unsure.

    Hard attention that samples its regions draws others than for the captions.

    Args:
        regions: (I, L, D) of the images.
        captions: of each image.
    """
    sequences = [torch.tensor(caption.tokens) for image_captions in captions for caption in image_captions]
    unsure = (calibration(regions) > calibration.threshold).tolist()
    if not sequences:
        return captions
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD).to(regions.device)
    image_index = torch.tensor([image for image, image_captions in enumerate(captions) for _ in image_captions])
    outputs = captioner(regions, image_index.to(regions.device), tokens)
    targets = tokens.flatten()[outputs.indices]
    log_probs = calibration.calibrate(outputs.logits.log_softmax(dim=1)).gather(1, targets.unsqueeze(1)).squeeze(1)
    rows = iter(outputs.at_steps(log_probs).cpu())
    return [
        [one._replace(calibrated_log_probs=next(rows)[: len(one.tokens)], unsure=is_unsure) for one in image_captions]
        for image_captions, is_unsure in zip(captions, unsure, strict=True)
    ]
