"""Views of photographs: drawn for every batch of training, or stored with the features of the encoder."""

import math
import re

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from showattendtell.images.reading import Preprocessing
from showattendtell.settings import Fraction, Probability, Share
from showattendtell.types import Box, Example

Draw = tuple[int, int]
"""Epoch and number of a training batch, which decide with the seed which views of its images are drawn."""

ASPECTS = (3 / 4, 4 / 3)
"""Range of the aspect ratio (width / height) of random crops (Szegedy et al. 2015), if the photograph allows it."""


class Augmentation:
    """Augmentation of training photographs; by default none.

    Args:
        seed: seed of the views, together with the epoch and the number of the batch in it.
        flip: probability of mirroring; photographs whose captions have words that begin with left or right are never
            mirrored.
        crop: smallest fraction of the photograph's area in a view, at a random position and scaled to the encoder's
            square; 1 is the crop of validation.
        color: maximum relative change of each of brightness, contrast and saturation.
    """

    def __init__(self, seed: int, flip: Probability = 0.0, crop: Share = 1.0, color: Fraction = 0.0):
        self.seed, self.flip, self.crop, self.color = seed, flip, crop, color

    def __bool__(self) -> bool:
        return bool(self.flip or self.crop < 1 or self.color)

    def view(self, pixels: Tensor, preprocessing: Preprocessing, rng: np.random.Generator, sided: bool) -> Tensor:
        """Draw a view: (3, height, width) to (3, crop, crop), both uint8; never mirrored if `sided`."""
        part, mirrored = self.draw_part(pixels.shape[1], pixels.shape[2], rng, sided)
        if part is None:
            view_pixels = preprocessing(pixels)
        else:
            shown, square = pixels[:, part.top : part.bottom, part.left : part.right], [preprocessing.crop] * 2
            interpolation = InterpolationMode(preprocessing.interpolation)
            view_pixels = transforms.resize(shown, square, interpolation, antialias=True)
        if mirrored:
            view_pixels = transforms.horizontal_flip(view_pixels)
        for adjust in (transforms.adjust_brightness, transforms.adjust_contrast, transforms.adjust_saturation):
            if self.color:
                view_pixels = adjust(view_pixels, rng.uniform(1 - self.color, 1 + self.color))
        return view_pixels

    def draw_part(self, height: int, width: int, rng: np.random.Generator, sided: bool) -> tuple[Box | None, bool]:
        """Draw the part of a photograph that a view shows, the first step of `view`.

        Returns:
            The part in pixels, or None for the crop of validation; and whether it is mirrored.
        """
        part = None
        if self.crop < 1:
            area = rng.uniform(self.crop, 1) * height * width
            # A crop of this area and aspect ratio r is sqrt(area r) wide and sqrt(area / r) high. Both fit into the
            # photograph if area / height^2 <= r <= width^2 / area.
            possible = np.clip(ASPECTS, area / height**2, width**2 / area)
            aspect = math.exp(rng.uniform(*np.log(possible)))
            wide, high = max(1, round(math.sqrt(area * aspect))), max(1, round(math.sqrt(area / aspect)))
            top = int(rng.integers(height - high, endpoint=True))
            left = int(rng.integers(width - wide, endpoint=True))
            part = Box(left, top, left + wide, top + high)
        return part, bool(rng.random() < self.flip) and not sided


SIDES = re.compile("left|right|links|linke[mnrs]?$|rechts|rechte|.*[左右]")
"""Words for left and right in English, German, and Chinese or Japanese, which have no spaces between words."""


def mentions_sides(example: Example) -> bool:
    """Return whether a caption distinguishes left from right, so that it is wrong for the mirrored photograph."""
    return any(SIDES.match(word) for caption in example.captions for word in caption.plain_words)


MIRRORED = 1
"""Number of the stored view that is the mirror image; 0 is the image itself."""


def draw_views(sided: NDArray[np.bool_], seed: int, draw: Draw) -> Tensor:
    """Draw the image or its mirror image, for each of the N images of a split.

    Views are drawn for all images and not only for those of the batch, so that processes with different parts of a
    batch draw the same.

    Args:
        sided: (N,) whether the captions of an image distinguish left from right; its mirror image is not drawn then.
        seed, draw: random seed, with the epoch and the number of the batch in it.

    Returns:
        Numbers of views (N,).
    """
    views = np.random.default_rng([seed, *draw]).integers(2, size=len(sided))
    return torch.from_numpy(np.where(sided, 0, views))
