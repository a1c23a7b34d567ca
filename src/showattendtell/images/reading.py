"""Read images of files and URLs, preprocess them for the encoder, and map its input back to the photograph."""

import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from pydantic import Field
from torch import Tensor
from torchvision import io
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from showattendtell import __version__
from showattendtell.errors import UserError, first_line
from showattendtell.images.limits import FILE_MEGABYTES, MAX_PIXELS, MEGAPIXELS, CostlyImageError, bounded_open
from showattendtell.images.names import files_below, is_photograph
from showattendtell.runtime.files import open_regular
from showattendtell.settings import ImageLength, is_url
from showattendtell.types import Box

PIXELS = 2
"""Version of image decoding. Increase it when pixels change: grids of another version are rejected."""

MAX_ASPECT_RATIO = 16
"""Maximum aspect ratio. The ends of a longer image are cropped before it is resized."""

SECONDS = 30.0
"""Maximum time to fetch a photograph."""

STALLED = 10.0
"""Seconds without data after which a connection counts as broken."""

HEADERS = {"User-Agent": f"showattendtell/{__version__}", "Accept": "image/*", "Accept-Encoding": "identity"}
"""Several sites reject the default name of the library."""


def open_image(path: str | Path) -> Image.Image:
    """Open an image file of any mode as upright RGB, rotated by its EXIF data.

    Of an animation this is the first frame; transparent parts become white.

    Raises:
        UserError: the file is missing, truncated, in none of `FORMATS`, or too large or costly to decode.
    """
    with _opened(path) as image:
        return upright_rgb(image)


def decode_image(content: bytes, name: str, max_pixels: float = MAX_PIXELS) -> Image.Image:
    """Decode the content of a file as `open_image` does.

    Args:
        name: its name in error messages.
        max_pixels: maximum number of pixels, checked before decoding; a larger baseline JPEG is reduced.

    Raises:
        UserError: as `open_image`.
    """
    with _reported(name), bounded_open(BytesIO(content), max_pixels=max_pixels) as image:
        return upright_rgb(image)


def read_pixels(path: str | Path) -> Tensor:
    """Return the pixels of `open_image`, (3, height, width) in uint8.

    Raises:
        UserError: as `open_image`.
    """
    # torchvision decodes JPEGs faster than Pillow, but does not rotate them and lacks some color spaces
    with _opened(path) as image:
        is_reduced = getattr(image, "decoderconfig", ())  # see `bounded_open`
        if image.format == "JPEG" and not is_reduced and image.mode in ("RGB", "L") and _orientation(image) == 1:
            content = torch.from_numpy(np.fromfile(path, dtype=np.uint8))
            # torchvision announced a release without decoders. Pillow decides whether a file is broken.
            with suppress(AttributeError, RuntimeError):
                return io.decode_jpeg(content, io.ImageReadMode.RGB)
        return transforms.pil_to_tensor(upright_rgb(image))


@cache
def image_size(path: str) -> tuple[int, int]:
    """Return (width, height) of the upright image, read from the header.

    Raises:
        UserError: as `open_image`.
    """
    with _opened(path, decoded=False) as image:
        is_upright = image.format == "TIFF"  # Pillow's TIFF reader has rotated the size
        # orientations 5 to 8 are rotations by 90 degrees, which exchange the sides
        return (image.height, image.width) if _orientation(image) >= 5 and not is_upright else image.size


def fetch_image(url: str) -> Image.Image:
    """Fetch a photograph over http or https, and return it as upright RGB.

    Redirects are followed to http and https only.

    Raises:
        UserError: it cannot be fetched within `SECONDS`, is larger than `FILE_MEGABYTES` or `MEGAPIXELS`, or is not an
            image.
    """
    import requests
    from urllib3.exceptions import HTTPError

    content, deadline = bytearray(), time.monotonic() + SECONDS
    try:
        with requests.get(url, headers=HEADERS, stream=True, timeout=STALLED) as response:
            response.raise_for_status()
            # `read1` returns what has come, so that a slow server does not delay the check of the time
            while chunk := response.raw.read1(2**16):
                content += chunk
                if len(content) > 1e6 * FILE_MEGABYTES:
                    raise UserError(f"image {url} has more than {FILE_MEGABYTES:g} MB; fetch it, and reduce it")
                if time.monotonic() > deadline:
                    raise UserError(f"image {url} took longer than {SECONDS:g} seconds; fetch it with another program")
    except (requests.RequestException, HTTPError) as error:
        cause: BaseException = error
        while cause.__context__ is not None:  # such as `Connection refused`
            cause = cause.__context__
        reason = getattr(cause, "strerror", None) or first_line(cause).partition(" for url")[0]
        raise UserError(f"image {url} cannot be fetched ({reason}); check the URL and the network") from None
    return decode_image(bytes(content), url, max_pixels=1e6 * MEGAPIXELS)


@contextmanager
def _opened(path: str | Path, decoded: bool = True) -> Iterator[Image.Image]:
    """Open a file with Pillow, as a header only unless it will be `decoded`. Any failure becomes a `UserError`."""
    with _reported(path), open_regular(path, buffering=0) as file, bounded_open(file, decoded=decoded) as image:
        yield image


@contextmanager
def _reported(name: str | Path) -> Iterator[None]:
    """Convert any failure of reading the image `name` to a `UserError`."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"image {name} does not exist") from None
    except CostlyImageError as error:
        raise UserError(f"image {name} {error}") from None
    except Exception as error:  # Pillow's readers have no common error for damaged files
        reason = getattr(error, "strerror", None) or first_line(error).removesuffix(".")
        raise UserError(f"image {name} cannot be read ({reason}); repair or replace the file") from None


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) if it is missing or invalid."""
    with suppress(Exception):  # damaged EXIF data do not affect pixels
        number = image.getexif().get(ExifTags.Base.Orientation, 1)
        return number if number in range(1, 9) else 1
    return 1


def upright_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow image to upright RGB, as `open_image` does.

    Grey of 16 or 32 bits is scaled to 8 bits. White is 65535, for floats 1 or 255; the maximum of the image if it is
    larger.
    """
    image.load()  # before its EXIF data are read, which may follow the pixels
    upright = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
    if upright.mode.startswith(("I", "F")):
        levels = np.array(upright, dtype=np.float32)
        np.nan_to_num(levels, copy=False, posinf=0)
        np.clip(levels, 0, 1e30, out=levels)
        whites = (1, 255, 65535) if upright.mode == "F" else (65535,)
        largest = levels.max()
        levels *= 255
        levels /= next((white for white in whites if largest <= white), largest)
        upright = Image.fromarray(levels.astype(np.uint8))  # Pillow would clip them
    elif upright.has_transparency_data:
        layer = upright.convert("RGBA")
        upright = Image.new("RGB", layer.size, "white")
        upright.paste(layer, mask=layer)
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def middle(pixels: Tensor) -> Tensor:
    """Crop the ends of an image (3, height, width) that is longer than `MAX_ASPECT_RATIO`."""
    longest = MAX_ASPECT_RATIO * min(pixels.shape[1:])
    return transforms.center_crop(pixels, [min(side, longest) for side in pixels.shape[1:]])


class FoundImages(NamedTuple):
    """Images by their sources, paths or URLs.

    sources  in the order of `find_images`
    names    the path of each image within the folder that was searched; its own name if it was given
    others   number of other files in the folders
    """

    sources: list[str]
    names: list[str]
    others: int

    def select(self, sources: Collection[str]) -> "FoundImages":
        """Return those from some of the sources."""
        indices = [i for i, source in enumerate(self.sources) if source in sources]
        return self._replace(sources=[self.sources[i] for i in indices], names=[self.names[i] for i in indices])


def find_images(sources: str | Sequence[str]) -> FoundImages:
    """Return the given file or files and URLs, and the image files in the given folders and their subfolders, sorted.

    Hidden files and folders are skipped. Linked folders are searched, each once, but for those above the given folder.

    Raises:
        UserError: a folder has no image files, or cannot be read.
    """
    paths, names, others = [], [], 0
    for path in [sources] if isinstance(sources, str) else sources:
        if is_url(path) or not os.path.isdir(path):
            paths.append(path)
            within = re.sub(r"^[^/]*//[^/?#]*|[?#].*", "", path) if is_url(path) else path
            names.append(PurePosixPath(within).name or "photograph")
            continue
        files = list(files_below(path, _refuse_folder))
        images = list(filter(is_photograph, files))
        if not images:
            raise UserError(f"the folder {path} holds no image files; give one that does, or name files")
        paths += (str(Path(image)) for image in images)  # without "./"
        names += (os.path.relpath(image, path) for image in images)
        others += len(files) - len(images)
    return FoundImages(paths, names, others)


def _refuse_folder(error: OSError) -> None:
    raise UserError(f"the folder {error.filename} cannot be read ({error.strerror}); change its permissions")


class Frame(NamedTuple):
    """The part of a photograph that the encoder sees.

    seen      in fractions of the photograph's width and height
    mirrored  whether the encoder sees it mirrored
    """

    seen: Box
    mirrored: bool = False


Mean = Annotated[float, Field(ge=-1000, le=1000)]
Deviation = Annotated[float, Field(ge=0.001, le=1000)]

CropMode = Literal["center", "squash"]
"""Scale the shortest side of an image (`center`) or both sides (`squash`), as in timm."""


class Preprocessing(NamedTuple):
    """Image preprocessing of the encoder, which is stored in the checkpoint.

    1. Resize the shortest side to `resize` with the aspect ratio kept; both sides if `crop_mode` is `squash`.
    2. Crop the central `crop` x `crop` pixels.
    3. Compute (value - mean) / std per channel, with values from 0 to 1 (`normalize`).
    """

    resize: ImageLength
    crop: ImageLength
    mean: tuple[Mean, Mean, Mean]
    std: tuple[Deviation, Deviation, Deviation]
    interpolation: Literal["nearest", "nearest-exact", "bilinear", "bicubic"] = "bicubic"
    crop_mode: CropMode = "center"

    def __call__(self, image: Image.Image | Tensor) -> Tensor:
        """Resize and crop an RGB image, or pixels (3, height, width) in uint8, to (3, crop, crop) in uint8."""
        pixels = transforms.pil_to_tensor(image) if isinstance(image, Image.Image) else image
        interpolation = InterpolationMode(self.interpolation)
        if self.crop_mode == "center":
            size, pixels = [self.resize], middle(pixels)
        else:
            # a resize of 1 x N to a square makes `resize` x N pixels in between; the long side alone first makes few
            size, longest = [self.resize] * 2, max(MAX_ASPECT_RATIO * min(pixels.shape[1:]), 4 * self.resize)
            bounded = [min(side, longest) for side in pixels.shape[1:]]
            pixels = transforms.resize(pixels, bounded, interpolation, antialias=True)
        resized = transforms.resize(pixels, size, interpolation, antialias=True)
        return transforms.center_crop(resized, [self.crop, self.crop])

    def normalize(self, pixels: Tensor) -> Tensor:
        """Normalize pixels (..., 3, height, width) in uint8; return float32 of the same shape."""
        scaled = transforms.to_dtype(pixels, torch.float32, scale=True)
        # torchvision's `normalize` copies its constants from pageable memory, which waits for the GPU
        constants = [torch.tensor(values, pin_memory=pixels.is_cuda) for values in (self.mean, self.std)]
        mean, std = (values.to(pixels.device, non_blocking=True).view(3, 1, 1) for values in constants)
        return (scaled - mean) / std

    def crop_box(self, width: int, height: int) -> Box:
        """Return the part of a width x height image that the encoder sees, in pixels of this image."""
        # one pixel after resizing is across / resize pixels of the image wide, and down / resize high
        across, down = (width, height) if self.crop_mode == "squash" else [min(width, height)] * 2
        wide, high = self.crop * across / self.resize, self.crop * down / self.resize
        left, top = (width - wide) / 2, (height - high) / 2
        return Box(left, top, left + wide, top + high)

    def frame(self, path: str) -> Frame:
        """Return the part of an image file that the encoder sees. Raise `UserError` if the file cannot be read."""
        width, height = image_size(path)
        return Frame(self.crop_box(width, height).scaled(1 / width, 1 / height))

    def describe(self) -> dict[str, Any]:
        """Return the arguments as plain data."""
        # without the default crop mode, as in checkpoints from before there was another
        plain = {**self._asdict(), "mean": list(self.mean), "std": list(self.std)}
        return {name: value for name, value in plain.items() if (name, value) != ("crop_mode", "center")}


Photograph = str | Path | bytes | IO[bytes] | Image.Image | np.ndarray | Tensor
"""A photograph: the path of a file, its content, an open file, a Pillow image, or pixels.

Pixels are an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or a tensor (H, W), (1, H, W), (3, H, W) or (4, H, W), in
uint8 from 0 to 255 or in floats from 0 to 1. Four channels are RGB and opacity."""


def as_image(photograph: Photograph) -> Image.Image:
    """Return a photograph as upright RGB.

    Raises:
        UserError: it is unreadable, of another type, or pixels of another shape or range.
    """
    match photograph:
        case str() if is_url(photograph):
            return fetch_image(photograph)
        case str() | Path():
            return open_image(photograph)
        case bytes() | bytearray() | memoryview():
            return decode_image(bytes(photograph), name_of(photograph))
        case Image.Image():
            if not all(photograph.size):
                raise UserError(f"an image of {photograph.width} x {photograph.height} pixels is not a photograph")
            with _reported(name_of(photograph)):  # Pillow may read its pixels only now
                image = upright_rgb(photograph)
            return image.copy() if image is photograph else image  # the caller may change its own
        case Tensor():
            pixels = photograph.detach().cpu()
            if pixels.is_floating_point():
                pixels = pixels.float()  # numpy has no bfloat16
            return _from_pixels((pixels.movedim(0, 2) if pixels.ndim == 3 else pixels).numpy(), photograph.shape)
        case np.ndarray():
            return _from_pixels(photograph, photograph.shape)
    content = photograph.read() if hasattr(photograph, "read") else None
    if not isinstance(content, bytes):
        raise UserError(
            f"a {type(photograph).__name__} is not a photograph; give a path, bytes, an open file, a PIL image, an "
            "array or a tensor"
        )
    return decode_image(content, name_of(photograph))


def name_of(photograph: Photograph) -> str:
    """Return the name of a photograph for messages: its file, or else its type."""
    if isinstance(photograph, str | Path):
        return str(photograph)
    name = getattr(photograph, "filename", None) or getattr(photograph, "name", None)
    return str(name) if name else f"of {type(photograph).__name__}"


def _from_pixels(pixels: np.ndarray, given_shape: Sequence[int]) -> Image.Image:
    """Convert an array (H, W) or (H, W, C) to an image; the error about another shape names `given_shape`."""
    image = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or image.size == 0:
        raise UserError(
            f"pixels of shape {tuple(given_shape)} are not a photograph; give an array (H, W, 3) or a tensor (3, H, W)"
        )
    is_float, least, most = np.issubdtype(image.dtype, np.floating), image.min(), image.max()
    if is_float and least >= 0 and most <= 1:
        image = np.rint(image * 255).astype(np.uint8)
    if image.dtype != np.uint8:
        values = f" from {least:g} to {most:g}" if is_float else ""
        raise UserError(f"pixels are {image.dtype}{values}; give uint8 from 0 to 255, or floats from 0 to 1")
    return upright_rgb(Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image))
