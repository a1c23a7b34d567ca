"""Augmentation of training photographs, drawn for every batch."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from showattendtell.data.images import Preprocessing, read_pixels
from showattendtell.runtime.vision import InterpolationMode, transforms
from showattendtell.settings import Fraction, Probability, Share
from showattendtell.types import Caption, Example

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
        colour: maximum relative change of each of brightness, contrast and saturation.
    """

    def __init__(self, seed: int, flip: Probability = 0.0, crop: Share = 1.0, colour: Fraction = 0.0):
        self.seed, self.flip, self.crop, self.colour = seed, flip, crop, colour

    def __bool__(self) -> bool:
        return bool(self.flip or self.crop < 1 or self.colour)

    def view(self, pixels: Tensor, preprocessing: Preprocessing, rng: np.random.Generator, sided: bool) -> Tensor:
        """Draw a view: (3, height, width) to (3, crop, crop), both uint8; never mirrored if `sided`."""
        if self.crop == 1:
            seen = preprocessing(pixels)
        else:
            height, width = pixels.shape[1:]
            area = rng.uniform(self.crop, 1) * height * width
            # A crop of this area and aspect ratio r is sqrt(area r) wide and sqrt(area / r) high. Both fit into the
            # photograph if area / height^2 <= r <= width^2 / area.
            possible = np.clip(ASPECTS, area / height**2, width**2 / area)
            aspect = math.exp(rng.uniform(*np.log(possible)))
            wide, high = max(1, round(math.sqrt(area * aspect))), max(1, round(math.sqrt(area / aspect)))
            top, left = rng.integers(height - high, endpoint=True), rng.integers(width - wide, endpoint=True)
            square, how = [preprocessing.crop] * 2, InterpolationMode(preprocessing.interpolation)
            seen = transforms.resized_crop(pixels, int(top), int(left), high, wide, square, how, antialias=True)
        if rng.random() < self.flip and not sided:
            seen = transforms.horizontal_flip(seen)
        for adjust in (transforms.adjust_brightness, transforms.adjust_contrast, transforms.adjust_saturation):
            if self.colour:
                seen = adjust(seen, rng.uniform(1 - self.colour, 1 + self.colour))
        return seen


def augmented_files(
    examples: Sequence[Example], preprocessing: Preprocessing, augmentation: Augmentation
) -> Callable[..., Tensor]:
    """Return a function that reads augmented images, (I, 3, crop, crop) in uint8, by their positions in `examples`.

    Its second argument, epoch and batch, seeds the views: they depend neither on the process nor on earlier reads. It
    raises `UserError` for a photograph that cannot be read.
    """
    sided = [mentions_sides(example) for example in examples]

    def read(positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
        views = []
        for position in positions:
            rng = np.random.default_rng([augmentation.seed, *draw, position])
            pixels = read_pixels(examples[position].path)
            views.append(augmentation.view(pixels, preprocessing, rng, sided[position]))
        return torch.stack(views)

    return read


SIDES = {"de": ("links", "linke", "rechts", "rechte"), "zh": ("左", "右")}
"""Beginnings of words for left and right in other languages than English; in Chinese they may be anywhere."""


def mentions_sides(example: Example) -> bool:
    """Return whether a caption distinguishes left from right, so that it is wrong for the mirrored photograph.

    Known in English, German and Chinese.
    """
    return any(map(_names_side, example.captions))


def _names_side(caption: Caption) -> bool:
    sides = SIDES.get(caption.language, ("left", "right"))
    if caption.language == "zh":
        return any(side in caption.written for side in sides)
    return any(word.startswith(sides) for word in caption.plain_words)
