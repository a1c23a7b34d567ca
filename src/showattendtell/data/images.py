"""From an image file to the pixels that the encoder sees, and back to the photograph's own pixels."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchvision import io
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from showattendtell.errors import UserError
from showattendtell.records import Box

PIXELS = 2
"""Counts how often this module came to give other pixels of a file; grids stored under another number are refused."""

HEAD = 512
"""The first bytes of a file, which tell what it is where it is no image."""

LONGEST = 16
"""Times the shortest side: what of a longer image is far from its middle is cut off before anything is computed."""


def open_image(path: str | Path) -> Image.Image:
    """An image file as upright RGB, whatever its mode and EXIF rotation; the first picture of an animated one, and on
    white what is transparent.

    Raises `UserError` for a file that is missing, truncated, no image, or larger than Pillow's limit on pixels.
    """
    with _opened(path) as image:
        return upright_rgb(image)


def decode_image(content: bytes, name: str, most_pixels: int | None = None) -> Image.Image:
    """As `open_image`, of a file's content; `name` is what a `UserError` calls it.

    Args:
        most_pixels: what it may have by its header; more are refused before anything is decoded.
    """
    with _telling(name, lambda: content[:HEAD]), Image.open(BytesIO(content)) as image:
        if most_pixels and image.width * image.height > most_pixels:
            raise ValueError(f"{image.width:,} x {image.height:,} pixels are more than {most_pixels:,} in all")
        return upright_rgb(image)


def read_pixels(path: str | Path) -> Tensor:
    """The pixels of `open_image`, (3, height, width), uint8; of most JPEGs decoded in less time, by torchvision."""
    with _opened(path) as image:
        pixels = _decode_jpeg(path) if _is_plain_jpeg(image) else None
        return transforms.pil_to_tensor(upright_rgb(image)) if pixels is None else pixels


@cache
def image_size(path: str) -> tuple[int, int]:
    """(width, height) of the upright image, from the file's header alone; faults as of `open_image`."""
    with _opened(path) as image:
        told_upright = image.format == "TIFF"  # its reader has turned the size already
        return (image.height, image.width) if _orientation(image) >= 5 and not told_upright else image.size


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    """Pillow's view of a file, only its header read; whatever fails with it is a `UserError`."""
    with _telling(path, lambda: _head(path)):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):  # a pipe would be waited for
            raise OSError("it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or device")
        with Image.open(path) as image:
            yield image


@contextmanager
def _telling(name: str | Path, head: Callable[[], bytes]) -> Iterator[None]:
    """Whatever fails with an image as a `UserError`; what is no image is told by its first bytes."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"image {name} does not exist") from None
    except UnidentifiedImageError:
        raise _unreadable(name, _what_it_is(head())) from None
    except Exception as fault:  # Pillow's readers have no one error for a file that is damaged
        told = getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
        raise _unreadable(name, told.removesuffix(".").splitlines()[0]) from None


def _unreadable(name: str | Path, reason: str) -> UserError:
    return UserError(f"image {name} cannot be read ({reason}); mend or replace the file")


def _head(path: str | Path) -> bytes:
    with open(path, "rb") as content:
        return content.read(HEAD)


def _what_it_is(head: bytes) -> str:
    """Of the first bytes of what is no image."""
    if not head.strip(b"\0"):
        return "it begins with zeros, as a broken copy does" if head else "it is empty"
    if re.match(rb"\s*<(!doctype html|html|head|body)", head, re.IGNORECASE):
        return "it is a web page, as a failed download leaves it"
    return "it is no image that is known" if re.search(rb"[\0-\x08\x0e-\x1f]", head) else "it is text"


def _orientation(image: Image.Image) -> int:
    """As EXIF numbers it; 1, upright, where nothing else is said that can be understood."""
    try:
        number = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data harm no pixel
        return 1
    return number if number in range(1, 9) else 1


def _is_plain_jpeg(image: Image.Image) -> bool:
    """Whether torchvision may decode it: what is rotated, or in the colours of print, is left to Pillow."""
    return image.format == "JPEG" and image.mode in ("RGB", "L") and _orientation(image) == 1


def _decode_jpeg(path: str | Path) -> Tensor | None:
    """(3, height, width), uint8; None where Pillow is to tell whether the file is broken.

    torchvision announced that a later release comes without its decoders.
    """
    content = torch.from_numpy(np.fromfile(path, dtype=np.uint8))
    try:
        return io.decode_jpeg(content, io.ImageReadMode.RGB)
    except (AttributeError, RuntimeError):
        return None


def upright_rgb(image: Image.Image) -> Image.Image:
    """As `open_image` has it, of any picture of Pillow's."""
    image.load()  # before its EXIF data are looked at, which may stand behind the pixels
    turned = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
    if turned.mode.startswith(("I", "F")):
        return _eight_bits(turned).convert("RGB")
    if not turned.has_transparency_data:
        return turned.convert("RGB")
    picture = turned.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits scaled to 8, where Pillow clips it. White is 65535, of floats 1 or 255; or the image's own
    largest value where that is larger."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0).clip(0)
    whites = (1, 255, 65535) if image.mode == "F" else (65535,)
    largest = values.max()
    white = next((white for white in whites if largest <= white), largest)
    return Image.fromarray((values * 255 / white).astype(np.uint8))


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


CropMode = Literal["center", "squash"]
"""As timm has it: whether an image's shortest side is scaled to a length, or both."""


class Preprocessing(NamedTuple):
    """How an image becomes the encoder's input: shortest side to `resize` with the aspect kept, or where `crop_mode` is
    `squash` both sides, the central square of `crop` pixels cut out; then, a batch at a time, (value - mean) / std per
    channel. It travels in the checkpoint."""

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop_mode: CropMode = "center"

    def __call__(self, image: Image.Image | Tensor) -> Tensor:
        """RGB, or its pixels (3, height, width) in uint8, to (3, crop, crop), uint8."""
        pixels = transforms.pil_to_tensor(image) if isinstance(image, Image.Image) else image
        strip, size = (pixels, [self.resize] * 2) if self.crop_mode == "squash" else (_middle(pixels), [self.resize])
        resized = transforms.resize(strip, size, InterpolationMode(self.interpolation), antialias=True)
        return transforms.center_crop(resized, [self.crop, self.crop])

    def normalise(self, pixels: Tensor) -> Tensor:
        """(..., 3, height, width), uint8 to float32 of the same shape."""
        return transforms.normalize(transforms.to_dtype(pixels, torch.float32, scale=True), self.mean, self.std)

    def crop_box(self, width: int, height: int) -> Box:
        """The part of a width x height image that the encoder sees, in that image's pixels."""
        across, down = (width, height) if self.crop_mode == "squash" else [min(width, height)] * 2
        wide, high = self.crop * across / self.resize, self.crop * down / self.resize
        left, top = (width - wide) / 2, (height - high) / 2
        return Box(left, top, left + wide, top + high)

    def describe(self) -> dict[str, Any]:
        """As plain data, of which `Preprocessing(**...)` makes it again; `center` goes without saying."""
        plain = {**self._asdict(), "mean": list(self.mean), "std": list(self.std)}
        return {name: value for name, value in plain.items() if (name, value) != ("crop_mode", "center")}


def _middle(pixels: Tensor) -> Tensor:
    """What is not too far from the middle of (3, height, width)."""
    height, width = pixels.shape[1:]
    longest = LONGEST * min(height, width)
    return transforms.center_crop(pixels, [min(height, longest), min(width, longest)])


class ImageFiles(torch.utils.data.Dataset):
    """(position, preprocessed pixels); one that cannot be read gives its `UserError` in the pixels' place."""

    def __init__(self, paths: Sequence[str], preprocessing: Preprocessing):
        self.paths = list(paths)
        self.preprocessing = preprocessing

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> tuple[int, Tensor | UserError]:
        try:
            return position, self.preprocessing(read_pixels(self.paths[position]))
        except UserError as fault:
            return position, fault
