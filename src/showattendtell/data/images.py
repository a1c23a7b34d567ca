"""From an image file to the tensor that the encoder sees, and back to the photograph's own pixels."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import v2 as transforms

from showattendtell.errors import UserError
from showattendtell.records import Box


def open_image(path: str | Path) -> Image.Image:
    """An image file as upright RGB, whatever its mode and EXIF rotation.

    Raises `UserError` for a file that is missing, truncated, no image, or larger than Pillow's limit on pixels.
    """
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # Pillow clips 16 bits to 8 instead of scaling them
                upright = Image.fromarray((np.asarray(upright) // 256).astype(np.uint8))
            return upright.convert("RGB")
    except FileNotFoundError:
        raise UserError(f"image {path} does not exist") from None
    except (OSError, ValueError, SyntaxError, RuntimeError, Image.DecompressionBombError) as fault:
        reason = str(fault).removesuffix(".").splitlines()[0] if str(fault) else type(fault).__name__
        raise UserError(f"image {path} cannot be read ({reason}); replace the file") from None


def find_images(places: Sequence[str]) -> list[Path]:
    """The files named, and the image files of the folders named; a `UserError` where there is nothing."""
    files = []
    for place in map(Path, places):
        if place.is_dir():
            inside = sorted(filter(_is_image, place.iterdir()))
            if not inside:
                raise UserError(f"the folder {place} holds no image files; give one that does, or name files")
            files += inside
        else:
            files.append(place)
    return files


def _is_image(file: Path) -> bool:
    """By name: a format of Pillow's that is an image, and no hidden file."""
    mime = Image.MIME.get(Image.registered_extensions().get(file.suffix.lower(), ""), "")
    return mime.startswith("image/") and not file.name.startswith(".") and file.is_file()


@cache
def image_size(path: str) -> tuple[int, int]:
    """(width, height) of the upright image, from the file's header alone."""
    with Image.open(path) as image:
        turned = 5 <= image.getexif().get(ExifTags.Base.Orientation, 1) <= 8
        told_upright = image.format == "TIFF"  # its reader has turned the size already
        return (image.height, image.width) if turned and not told_upright else image.size


class Preprocessing(NamedTuple):
    """How an image becomes the encoder's input: shortest side to `resize` with the aspect kept, the central square of
    `crop` pixels cut out, then (value - mean) / std per channel. It travels in the checkpoint."""

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __call__(self, image: Image.Image) -> Tensor:
        """(3, crop, crop), float32."""
        pipeline = transforms.Compose(
            [
                transforms.Resize(self.resize, InterpolationMode(self.interpolation), antialias=True),
                transforms.CenterCrop(self.crop),
                transforms.ToImage(),
                transforms.ToDtype(torch.float32, scale=True),
                transforms.Normalize(self.mean, self.std),
            ]
        )
        return pipeline(image)

    def crop_box(self, width: int, height: int) -> Box:
        """The part of a width x height image that the encoder sees, in that image's pixels."""
        side = self.crop * min(width, height) / self.resize
        left, top = (width - side) / 2, (height - side) / 2
        return Box(left, top, left + side, top + side)


class ImageFiles(torch.utils.data.Dataset):
    """(position, preprocessed image); one that cannot be read gives its `UserError` in the tensor's place."""

    def __init__(self, paths: Sequence[str], preprocessing: Preprocessing):
        self.paths = list(paths)
        self.preprocessing = preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> tuple[int, Tensor | UserError]:
        try:
            return position, self.preprocessing(open_image(self.paths[position]))
        except UserError as fault:
            return position, fault
