"""Views of the training photographs, drawn anew for every batch."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from showattendtell.arguments import Fraction, Probability, Share
from showattendtell.data.images import Preprocessing, read_pixels
from showattendtell.records import Example

SIDES = ("left", "right")

ASPECTS = (3 / 4, 4 / 3)
"""Least and greatest width / height of what `crop` cuts out, where the photograph allows (Szegedy et al. 2015)."""


class Augmentation:
    """What a view of a training photograph may differ in; by default in nothing.

    Args:
        seed: decides the views, together with which images a batch has.
        flip: how often a view is mirrored; never that of a photograph whose captions have words that begin with left or
            right.
        crop: the smallest share of the photograph's area that a view shows, anywhere in it and scaled to the encoder's
            square; 1 is what validation sees.
        colour: by what share brightness, contrast and saturation may each be less or more.
    """

    def __init__(self, seed: int, flip: Probability = 0.0, crop: Share = 1.0, colour: Fraction = 0.0):
        self.seed, self.flip, self.crop, self.colour = seed, flip, crop, colour

    def __bool__(self) -> bool:
        return bool(self.flip or self.crop < 1 or self.colour)

    def view(self, pixels: Tensor, preprocessing: Preprocessing, rng: np.random.Generator, sided: bool) -> Tensor:
        """(3, height, width) to (3, crop, crop), both uint8.

        Args:
            sided: never to be mirrored.
        """
        seen = preprocessing(pixels) if self.crop == 1 else self._cut_out(pixels, preprocessing, rng)
        if rng.random() < self.flip and not sided:
            seen = transforms.horizontal_flip(seen)
        for adjust in (transforms.adjust_brightness, transforms.adjust_contrast, transforms.adjust_saturation):
            if self.colour:
                seen = adjust(seen, rng.uniform(1 - self.colour, 1 + self.colour))
        return seen

    def _cut_out(self, pixels: Tensor, preprocessing: Preprocessing, rng: np.random.Generator) -> Tensor:
        height, width = pixels.shape[1:]
        area = rng.uniform(self.crop, 1) * height * width
        possible = np.clip(ASPECTS, area / height**2, width**2 / area)
        aspect = math.exp(rng.uniform(*np.log(possible)))
        wide, high = max(1, round(math.sqrt(area * aspect))), max(1, round(math.sqrt(area / aspect)))
        top, left = rng.integers(height - high, endpoint=True), rng.integers(width - wide, endpoint=True)
        square, how = [preprocessing.crop] * 2, InterpolationMode(preprocessing.interpolation)
        return transforms.resized_crop(pixels, int(top), int(left), high, wide, square, how, antialias=True)


class AugmentedFiles:
    """Views of photographs, the same whichever process reads them, and whatever was read before."""

    def __init__(self, examples: Sequence[Example], preprocessing: Preprocessing, augmentation: Augmentation):
        self._paths = [example.path for example in examples]
        self._sided = [tells_sides(example) for example in examples]
        self._preprocessing, self._augmentation = preprocessing, augmentation

    def __call__(self, positions: Sequence[int]) -> Tensor:
        """(I, 3, crop, crop), uint8, of the photographs of a batch; a `UserError` where one is broken."""
        rng = np.random.default_rng([self._augmentation.seed, *positions])
        return torch.stack([self._view(position, rng) for position in positions])

    def _view(self, position: int, rng: np.random.Generator) -> Tensor:
        pixels = read_pixels(self._paths[position])
        return self._augmentation.view(pixels, self._preprocessing, rng, self._sided[position])


def tells_sides(example: Example) -> bool:
    """Whether a caption would be untrue of the mirrored photograph: it tells left from right."""
    return any(word.startswith(SIDES) for caption in example.captions for word in caption.words)
