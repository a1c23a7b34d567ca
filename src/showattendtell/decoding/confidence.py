"""How sure a trained model is of its captions: a map of the word probabilities, and the distance of images from the
training images. It is stored with the weights.

Sizes are those of `showattendtell.types`; K is the number of principal directions.
"""

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize
from torch.nn.utils.rnn import pad_sequence

from showattendtell.decoding.decoding import Captions
from showattendtell.models.captioner import Captioner
from showattendtell.text.vocabulary import PAD


class Confidence(nn.Module):
    """How probable it is that words are right, and how unlike the training images an image is.

    The probability p of the most probable word becomes q (Kull et al. 2017), with a, b >= 0, so that
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
        threshold: (), the unlikeness above which the model is not sure.
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

    def rescale(self, log_probs: Tensor) -> Tensor:
        """Return log q (..., V) of the words from log p (..., V)."""
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
"""Names of the tensors of a `Confidence`."""

CURVE_LIMIT = 9
"""Largest absolute value in the curve of a `Confidence`."""


def unit_mean(regions: Tensor) -> Tensor:
    """Return the mean of regions (I, L, D), scaled to length 1: (I, D)."""
    return normalize(regions.mean(dim=1), dim=1)


@torch.no_grad()
def rate_captions(captioner: Captioner, confidence: Confidence, regions: Tensor, captions: Captions) -> Captions:
    """Return the captions of images with the log q of their words, and whether the model is not sure.

    Hard attention that samples its regions draws others than for the captions.

    Args:
        regions: (I, L, D) of the images.
        captions: of each image.
    """
    not_sure = (confidence(regions) > confidence.threshold).tolist()
    sequences = [torch.tensor(caption.tokens) for caption in chain.from_iterable(captions)]
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD).to(regions.device)
    image_index = torch.arange(len(captions)).repeat_interleave(torch.tensor([*map(len, captions)]))
    outputs = captioner(regions, image_index.to(regions.device), tokens)
    targets = tokens.flatten()[outputs.indices]
    log_probs = confidence.rescale(outputs.logits.log_softmax(dim=1)).gather(1, targets.unsqueeze(1)).squeeze(1)
    rows = iter(outputs.at_steps(log_probs).cpu())
    return [
        [one._replace(confidence_log_probs=next(rows)[: len(one.tokens)], not_sure=doubt) for one in image_captions]
        for image_captions, doubt in zip(captions, not_sure, strict=True)
    ]
