"""Other views of an image, whose grids are stored beside that of the image itself.

View 0 is the image as it is, view 1 its mirror image; the further ones show a part of it, enlarged, every other one
mirrored. They depend on the image's name alone.
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
"""The least side of a part, as a share of the whole side."""


def view_of(pixels: Tensor, images: Sequence[str], view: int) -> Tensor:
    """(I, 3, S, S) pixels of the named images, to the same shape."""
    parts = pixels
    if view >= 2 and len(pixels):
        named = zip(images, pixels, strict=True)
        parts = torch.stack([_enlarge_part(own, Random(f"{view} {image}")) for image, own in named])
    return parts.flip(-1) if is_mirrored(view) else parts


def is_mirrored(view: Any) -> Any:
    """Of a view, or of each of an array of views."""
    return view % 2 == 1


def draw_views(number: int, positions: Sequence[int], sided: NDArray[np.bool_], seed: int) -> Tensor:
    """(I,) one of so many views for each image of a batch, decided by the seed and by which images the batch has.

    sided: (I,) whether the image's captions tell left from right, so that no mirrored view is drawn.
    """
    drawn = np.random.default_rng([seed, *positions]).integers(number, size=len(positions))
    return torch.from_numpy(np.where(sided & is_mirrored(drawn), drawn - 1, drawn))


def _enlarge_part(pixels: Tensor, random: Random) -> Tensor:
    whole = pixels.shape[-1]
    side = round(whole * random.uniform(SMALLEST, 1))
    top, left = random.randint(0, whole - side), random.randint(0, whole - side)
    return transforms.resized_crop(pixels, top, left, side, side, [whole, whole])
