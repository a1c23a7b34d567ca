"""Photographs in whatever form a program has them."""

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from showattendtell.data.images import decode_image, open_image, upright_rgb
from showattendtell.errors import UserError

Photograph = str | Path | bytes | IO[bytes] | Image.Image | np.ndarray | Tensor
"""The path of a file, its content, an open file, a picture of Pillow's, or pixels: an array (H, W), (H, W, 1),
(H, W, 3) or (H, W, 4), a tensor (H, W), (1, H, W), (3, H, W) or (4, H, W); of whole numbers from 0 to 255 in uint8, or
of floats from 0 to 1. Four channels are RGB and opacity."""

CHANNELS = (1, 3, 4)


def as_image(photograph: Photograph) -> Image.Image:
    """The photograph as upright RGB; a `UserError` for what cannot be read, and for pixels of another form."""
    match photograph:
        case str() | Path():
            return open_image(photograph)
        case bytes() | bytearray() | memoryview():
            return decode_image(bytes(photograph), name_of(photograph))
        case Image.Image():
            return upright_rgb(photograph)
        case Tensor():
            pixels = photograph.detach().cpu()
            layout = pixels.movedim(0, 2) if pixels.ndim == 3 else pixels
            return _from_pixels(layout.to(torch.float32 if pixels.is_floating_point() else pixels.dtype).numpy())
        case np.ndarray():
            return _from_pixels(photograph)
    read: Callable[[], Any] | None = getattr(photograph, "read", None)
    content = read() if read else None
    if not isinstance(content, bytes):
        raise UserError(
            f"a {type(photograph).__name__} is no photograph; give a path, bytes, an open file, a PIL image, an array "
            "or a tensor"
        )
    return decode_image(content, name_of(photograph))


def name_of(photograph: Photograph) -> str:
    """What a photograph is called: its file, if it has one, else what it is."""
    if isinstance(photograph, str | Path):
        return str(photograph)
    name = getattr(photograph, "filename", None) or getattr(photograph, "name", None)
    return str(name) if name else f"of {type(photograph).__name__}"


def _from_pixels(pixels: np.ndarray) -> Image.Image:
    """An array (H, W) or (H, W, C)."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[-1]
    if pixels.ndim not in (2, 3) or channels not in CHANNELS or 0 in pixels.shape:
        raise UserError(
            f"pixels of the shape {tuple(pixels.shape)} are no photograph; give an array (H, W, 3) or a "
            "tensor (3, H, W)"
        )
    eight_bits = _as_bytes(pixels)
    return upright_rgb(Image.fromarray(eight_bits[..., 0] if pixels.ndim == 3 and channels == 1 else eight_bits))


def _as_bytes(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise UserError(f"pixels are of {pixels.dtype}; give uint8 from 0 to 255, or floats from 0 to 1")
    if not (pixels.min() >= 0 and pixels.max() <= 1):
        raise UserError(
            f"pixels of floats reach from {pixels.min():g} to {pixels.max():g}; give 0 to 1, or uint8 from 0 to 255"
        )
    return np.rint(pixels * 255).astype(np.uint8)
