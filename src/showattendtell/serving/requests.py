"""Parsing of requests: a form with photographs, read within limits into memory only."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple

from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect, Request

from showattendtell.data.image_limits import CostlyImageError
from showattendtell.data.images import open_content
from showattendtell.serving.schemas import CaptionRequest, Limits, RequestError
from showattendtell.serving.server import FormError, InMemoryParser

PHOTOGRAPH = "photograph"
"""The field of the form that holds a file."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
FIELDS = 32
FIELD_BYTES = 2000
LONGEST_NAME = 120
MEGA = 1_000_000


class Upload(NamedTuple):
    """An uploaded photograph."""

    name: str
    content: bytes


async def read_form(request: Request, limits: Limits) -> tuple[list[Upload], CaptionRequest]:
    """Read the form of a request: its photographs and options.

    Raises `RequestError` for other content, too many photographs, a timeout, a body as soon as it is too large, and
    invalid options.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "multipart/form-data":
        sent = clean(kind) or "nothing"
        raise RequestError(415, f"a form is needed, multipart/form-data with a field '{PHOTOGRAPH}'; {sent} was sent")
    parts = {"max_files": limits.photographs, "max_fields": FIELDS, "max_part_size": FIELD_BYTES}
    try:
        async with asyncio.timeout(limits.seconds):
            parsed = await InMemoryParser(request.headers, _limited(request, limits), **parts).parse()
    except FormError as fault:
        raise RequestError(400, f"the form cannot be read ({fault.message.removesuffix('.')}); send it again") from None
    except ClientDisconnect:
        raise RequestError(400, "the form ended before all of it was received; send it again") from None
    except asyncio.CancelledError:
        raise RequestError(503, "the server is shutting down; try again when it has restarted") from None
    except TimeoutError:
        raise RequestError(408, f"the form did not arrive within {limits.seconds:g} seconds; send less") from None
    return await _sorted(parsed)


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, up to its maximum size."""
    most = limits.request_megabytes * MEGA
    too_large = f"the request has more than {limits.request_megabytes:g} MB; send fewer or smaller photographs"
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise RequestError(413, too_large)
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > most:
            raise RequestError(413, too_large)
        yield chunk


async def _sorted(parsed: FormData) -> tuple[list[Upload], CaptionRequest]:
    photographs: list[Upload] = []
    fields: dict[str, list[str]] = {}
    for field, value in parsed.multi_items():
        if not isinstance(value, UploadFile):
            fields.setdefault(field, []).append(value)
        elif field == PHOTOGRAPH:
            photographs.append(Upload(file_name(value.filename or ""), await value.read()))
        else:
            raise RequestError(422, f"there is no field '{clean(field)}' for files; send photographs as '{PHOTOGRAPH}'")
    if not photographs:
        raise RequestError(422, f"there is no photograph; send at least one file as the field '{PHOTOGRAPH}'")
    return photographs, read_options(fields)


def clean(text: str) -> str:
    """Remove unprintable characters and shorten the text, for use in messages."""
    shown = "".join(character for character in text if character.isprintable())
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def file_name(path: str) -> str:
    """Return the last part of a path of any operating system; browsers send a quotation mark as %22."""
    return clean(path.replace("%22", '"').replace("\\", "/").rpartition("/")[2]) or PHOTOGRAPH


def check(photographs: Sequence[Upload], limits: Limits) -> None:
    """Check the size, the format and the number of pixels of photographs, without decoding them.

    Raises `RequestError` for a file that is too large or not of an accepted format, and for too many pixels in total.
    """
    for name, content in photographs:
        if len(content) > limits.file_megabytes * MEGA:
            raise RequestError(413, f"{name} has more than {limits.file_megabytes:g} MB; send a smaller copy")
    if sum(map(_count_pixels, photographs)) > limits.megapixels * MEGA:
        sent = photographs[0].name if len(photographs) == 1 else "the photographs together"
        raise RequestError(
            413, f"{sent}: more than {limits.megapixels:g} million pixels; send smaller copies, or fewer at once"
        )


def _count_pixels(photograph: Upload) -> float:
    """Return the number of pixels according to the header."""
    try:
        with open_content(photograph.content, FORMATS) as image:
            return image.width * image.height
    except CostlyImageError as fault:
        raise RequestError(422, f"image {photograph.name} {fault}") from None
    except Image.DecompressionBombError:
        return math.inf
    except Exception as fault:  # Pillow raises many types for a damaged file
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise RequestError(415, f"{photograph.name} is no {known} file that can be read") from fault


def read_options(fields: Mapping[str, list[str]]) -> CaptionRequest:
    """Read the request options from the form's fields, without empty ones; raise `RequestError` if invalid."""
    several = {name: [value for value in values if value] for name, values in fields.items()}
    given = {name: values if name == "model" else values[-1] for name, values in several.items() if values}
    try:
        return CaptionRequest.model_validate(given)
    except ValidationError as fault:
        raise RequestError(422, "; ".join(_sentence(one["loc"], one["msg"]) for one in fault.errors()[:3])) from None


def _sentence(place: tuple[int | str, ...], message: str) -> str:
    name = clean(str(place[0])) if place else "a field"  # its name is not a string
    if message.startswith("Extra inputs"):
        return f"there is no field '{name}'; known are photograph, {', '.join(CaptionRequest.model_fields)}"
    return f"{name}: {message[0].lower()}{message[1:]}"
