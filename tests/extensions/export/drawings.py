"""Drawings with edges and slopes, as files of several kinds."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TURNED = Image.Exif()
TURNED[0x0112] = 6


def draw(folder: Path, name: str, size: tuple[int, int] = (320, 240), mode: str = "RGB", **saved: Any) -> Path:
    across, down = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    pixels = np.stack([across % 256, (3 * down) % 256, 255 * ((across // 7 + down // 5) % 2)], axis=2).astype(np.uint8)
    deep = mode == "I;16"
    image = Image.fromarray((200 * across).astype(np.uint16)) if deep else Image.fromarray(pixels).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray((across % 256).astype(np.uint8)))
    image.save(folder / name, **saved)
    return folder / name
