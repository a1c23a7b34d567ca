"""Views of a photograph: the image itself, its mirror image, and enlarged parts of both."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from showattendtell.data.images import Frame, Preprocessing
from showattendtell.types import Box, Example

MIRRORED = 1
"""Number of the view that is the mirror image; 0 is the image itself."""

SMALLEST = 0.7
"""Minimum side of an enlarged part, as a fraction of the whole side."""


def view_of(pixels: Tensor, images: Sequence[str], view: int) -> Tensor:
    """Return a view (I, 3, S, S) of the pixels of the named images, whose names seed the enlarged parts."""
    parts, size = [], pixels.shape[-1]
    for image, image_pixels in zip(images, pixels, strict=True) if view >= 2 else ():
        top, left, side = part_of(image, view, size)
        parts.append(transforms.resized_crop(image_pixels, top, left, side, side, [size, size]))
    views = torch.stack(parts) if parts else pixels
    return views.flip(-1) if is_mirrored(view) else views


def part_of(image: str, view: int, size: int) -> tuple[int, int, int]:
    """Return top, left and side of the square of `size` x `size` pixels that a view shows."""
    if view < 2:
        return 0, 0, size
    random = Random(f"{view} {image}")
    side = round(size * random.uniform(SMALLEST, 1))
    return random.randint(0, size - side), random.randint(0, size - side), side


def frame_of(example: Example, view: int, preprocessing: Preprocessing) -> Frame:
    """Return the part of a photograph that a view shows. Raise `UserError` if the photograph cannot be read."""
    size = preprocessing.crop
    top, left, side = part_of(example.image, view, size)
    part = Box(left, top, left + side, top + side).scaled(1 / size, 1 / size)
    return preprocessing.frame(example.path).part(part, is_mirrored(view))


def is_mirrored(view: Any) -> Any:
    """Return whether a view, or each of an array of views, is mirrored."""
    return view % 2 == 1


def draw_views(num_views: int, sided: NDArray[np.bool_], seed: int, draw: tuple[int, int]) -> Tensor:
    """Draw one of `num_views` views for each of the N images of a split.

    Views are drawn for all images and not only for those of the batch, so that processes with different parts of a
    batch draw the same.

    Args:
        sided: (N,) whether the captions of an image distinguish left from right; no mirrored view is drawn then.
        seed, draw: random seed, with the epoch and the number of the batch in it.

    Returns:
        Numbers of views (N,).
    """
    views = np.random.default_rng([seed, *draw]).integers(num_views, size=len(sided))
    return torch.from_numpy(np.where(sided & is_mirrored(views), views - 1, views))
