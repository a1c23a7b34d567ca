"""Augmentation of training photographs, drawn for every batch."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from showattendtell.data.images import Frame, Preprocessing, image_size, read_pixels
from showattendtell.settings import Fraction, Probability, Share
from showattendtell.types import Box, Example

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
            square, interpolation = [preprocessing.crop] * 2, InterpolationMode(preprocessing.interpolation)
            view_pixels = transforms.resized_crop(pixels, *part, square, interpolation, antialias=True)
        if mirrored:
            view_pixels = transforms.horizontal_flip(view_pixels)
        for adjust in (transforms.adjust_brightness, transforms.adjust_contrast, transforms.adjust_saturation):
            if self.color:
                view_pixels = adjust(view_pixels, rng.uniform(1 - self.color, 1 + self.color))
        return view_pixels

    def draw_part(
        self, height: int, width: int, rng: np.random.Generator, sided: bool
    ) -> tuple[tuple[int, int, int, int] | None, bool]:
        """Draw the part of a photograph that a view shows, the first step of `view`.

        Returns:
            Top, left, height and width in pixels, or None for the crop of validation; and whether it is mirrored.
        """
        part = None
        if self.crop < 1:
            area = rng.uniform(self.crop, 1) * height * width
            # A crop of this area and aspect ratio r is sqrt(area r) wide and sqrt(area / r) high. Both fit into the
            # photograph if area / height^2 <= r <= width^2 / area.
            possible = np.clip(ASPECTS, area / height**2, width**2 / area)
            aspect = math.exp(rng.uniform(*np.log(possible)))
            wide, high = max(1, round(math.sqrt(area * aspect))), max(1, round(math.sqrt(area / aspect)))
            top, left = rng.integers(height - high, endpoint=True), rng.integers(width - wide, endpoint=True)
            part = (int(top), int(left), high, wide)
        return part, bool(rng.random() < self.flip) and not sided


class AugmentedFiles:
    """Augmented images, (I, 3, crop, crop) in uint8, by their positions in `examples`.

    The second argument of its methods, epoch and batch, seeds the views: they depend neither on the process nor on
    earlier reads. They raise `UserError` for a photograph that cannot be read.
    """

    def __init__(self, examples: Sequence[Example], preprocessing: Preprocessing, augmentation: Augmentation):
        self.examples, self.preprocessing, self.augmentation = examples, preprocessing, augmentation
        self._mentions_sides = [mentions_sides(example) for example in examples]

    def __call__(self, positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
        views = []
        for position in positions:
            pixels = read_pixels(self.examples[position].path)
            rng = self._generator(position, draw)
            views.append(self.augmentation.view(pixels, self.preprocessing, rng, self._mentions_sides[position]))
        return torch.stack(views)

    def frames(self, positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> list[Frame]:
        """Return the parts of the photographs that the views of the same batch show."""
        frames = []
        for position in positions:
            width, height = image_size(self.examples[position].path)
            rng = self._generator(position, draw)
            part, mirrored = self.augmentation.draw_part(height, width, rng, self._mentions_sides[position])
            if part is None:
                box = self.preprocessing.frame(self.examples[position].path).seen
            else:
                top, left, crop_height, crop_width = part
                box = Box(left, top, left + crop_width, top + crop_height).scaled(1 / width, 1 / height)
            frames.append(Frame(box, mirrored))
        return frames

    def _generator(self, position: int, draw: tuple[int, int]) -> np.random.Generator:
        return np.random.default_rng([self.augmentation.seed, *draw, position])


SIDES = {"de": ("links", "linke", "rechts", "rechte"), "zh": ("左", "右")}
"""Beginnings of words for left and right in other languages than English; in Chinese they may be anywhere."""


def mentions_sides(example: Example) -> bool:
    """Return whether a caption distinguishes left from right, so that it is wrong for the mirrored photograph.

    Known in English, German and Chinese.
    """
    for caption in example.captions:
        sides = SIDES.get(caption.language, ("left", "right"))
        if caption.language == "zh":
            mentions = any(side in caption.written for side in sides)
        else:
            mentions = any(word.startswith(sides) for word in caption.plain_words)
        if mentions:
            return True
    return False
