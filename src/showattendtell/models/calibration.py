"""Calibration of a trained model: a scaling of the word probabilities, and the distance of images from the training
images. Sizes are those of `showattendtell.types`; K is the number of principal directions."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class Calibration(nn.Module):
    """Calibrated probabilities of words, and how unlike the training images an image is.

    The temperature of a step depends on the entropy H of its words (entropy-based temperature scaling, Balanya et al.
    2024). A share epsilon of the probability is that of any of the V words: a model trained by rewards is not right
    more often where it is surer. No order of words changes:

        p_cal = (1 - epsilon) softmax(log p / exp(t_0 + t_1 H)) + epsilon / V     H = -sum_v p_v log p_v

    The unlikeness of an image is the squared distance of its mean region, scaled to length 1, from the plane of the K
    principal directions of the training images (the residual of a principal component analysis):

        u = m / |m|     m = mean_i a_i     d = u - mu     unlikeness = |d|^2 - |W^T d|^2

    Args:
        scaling: (3,) t_0, t_1 and epsilon.
        mean: (D,) mu, the mean of u over the training images.
        directions: (D, K) W, orthonormal.
        threshold: (), the unlikeness above which the model is unsure.
    """

    scaling: Tensor
    mean: Tensor
    directions: Tensor
    threshold: Tensor

    def __init__(self, scaling: Tensor, mean: Tensor, directions: Tensor, threshold: Tensor):
        super().__init__()
        for name, values in zip(NAMES, (scaling, mean, directions, threshold), strict=True):
            self.register_buffer(name, values.float())

    def forward(self, regions: Tensor) -> Tensor:
        """Return the unlikeness (I,) of images with these regions (I, L, D)."""
        difference = unit_mean(regions) - self.mean
        inside = difference @ self.directions
        return difference.square().sum(dim=1) - inside.square().sum(dim=1)

    def calibrate(self, log_probs: Tensor) -> Tensor:
        """Return calibrated log p (..., V) of the words from log p (..., V)."""
        return scale(log_probs, self.scaling)


NAMES = ("scaling", "mean", "directions", "threshold")
"""Names of the tensors of a `Calibration`."""


def unit_mean(regions: Tensor) -> Tensor:
    """Return the mean of regions (I, L, D), scaled to length 1: (I, D)."""
    return normalize(regions.mean(dim=1), dim=1)


def scale(log_probs: Tensor, scaling: Tensor) -> Tensor:
    """Return calibrated log p (..., V) of log p (..., V) by t_0, t_1 and epsilon; see `Calibration`."""
    offset, slope, epsilon = scaling
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1, keepdim=True)
    scaled = (log_probs / torch.exp(offset + slope * entropy)).softmax(dim=-1)
    return torch.log((1 - epsilon) * scaled + epsilon / log_probs.shape[-1])
