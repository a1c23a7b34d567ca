"""Views of an image, whose grids are stored next to the grid of the image itself.

View 0 is the unchanged image, view 1 its mirror image; the others are enlarged parts of it, every other one
mirrored. They depend only on the image's name.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

MIRRORED = 1
"""The view that is the mirror image."""

SMALLEST = 0.7
"""Minimum side of a part, as a fraction of the whole side."""


def view_of(pixels: Tensor, images: Sequence[str], view: int) -> Tensor:
    """Return a view of the named images' pixels (I, 3, S, S), same shape."""
    parts = pixels
    if view >= 2 and len(pixels):
        named = zip(images, pixels, strict=True)
        parts = torch.stack([_enlarge_part(own, Random(f"{view} {image}")) for image, own in named])
    return parts.flip(-1) if is_mirrored(view) else parts


def is_mirrored(view: Any) -> Any:
    """Return whether a view, or each of an array of views, is mirrored."""
    return view % 2 == 1


def draw_views(number: int, sided: NDArray[np.bool_], seed: int, draw: tuple[int, int]) -> Tensor:
    """Draw one of `number` views for each of N images, (N,), in the batch that `draw` names by its epoch and number.

    All images of a split are drawn at once: a process that has a part of the batch then finds the same views.

    sided: (N,) whether the image's captions distinguish left from right, so that no mirrored view is drawn.
    """
    drawn = np.random.default_rng([seed, *draw]).integers(number, size=len(sided))
    return torch.from_numpy(np.where(sided & is_mirrored(drawn), drawn - 1, drawn))


def _enlarge_part(pixels: Tensor, random: Random) -> Tensor:
    whole = pixels.shape[-1]
    side = round(whole * random.uniform(SMALLEST, 1))
    top, left = random.randint(0, whole - side), random.randint(0, whole - side)
    return transforms.resized_crop(pixels, top, left, side, side, [whole, whole])
