"""What is sent with a request: a form with photographs, read into memory within limits and nowhere else."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from io import BytesIO
from typing import NamedTuple

from PIL import Image
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from showattendtell.serving.limits import MEGA, Limits
from showattendtell.serving.refusal import Refusal

PHOTOGRAPH = "photograph"
"""The field of the form that holds a file."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
FIELDS = 32
FIELD_BYTES = 2000
LONGEST_NAME = 120


class Upload(NamedTuple):
    """A photograph as it was sent."""

    name: str
    content: bytes


class Form(NamedTuple):
    """What a request holds: photographs, and the values of each other field."""

    photographs: list[Upload]
    fields: dict[str, list[str]]


class InMemory(MultiPartParser):
    """Starlette's, which writes no file; what is sent is limited before."""

    spool_max_size = 2**40


async def read_form(request: Request, limits: Limits) -> Form:
    """The form, if it is one with no more photographs than may be.

    Raises `Refusal` for anything else, for a body as soon as it is too large, and for one that does not come.
    """
    kind, _ = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        told = clean(kind.decode("latin-1")) or "nothing"
        raise Refusal(415, f"a form is needed, multipart/form-data with a field '{PHOTOGRAPH}'; {told} was sent")
    parts = {"max_files": limits.photographs, "max_fields": FIELDS, "max_part_size": FIELD_BYTES}
    try:
        async with asyncio.timeout(limits.seconds):
            parsed = await InMemory(request.headers, _limited(request, limits), **parts).parse()
    except MultiPartException as fault:
        raise Refusal(400, f"the form cannot be read ({fault.message.removesuffix('.')}); send it anew") from None
    except ClientDisconnect:
        raise Refusal(400, "the form ended before all of it had come; send it anew") from None
    except asyncio.CancelledError:
        raise Refusal(503, "the server ends; come again when it is started anew") from None
    except TimeoutError:
        raise Refusal(408, f"the form did not come within {limits.seconds:g} seconds; send less") from None
    return await _sorted(parsed)


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """The body as it comes in, up to what it may be."""
    most = limits.request_megabytes * MEGA
    length, fault = (
        request.headers.get("content-length", "0"),
        Refusal(413, f"the request has more than {limits.request_megabytes:g} MB; send fewer or smaller photographs"),
    )
    if length.isdecimal() and int(length) > most:
        raise fault
    come = 0
    async for chunk in request.stream():
        come += len(chunk)
        if come > most:
            raise fault
        yield chunk


async def _sorted(parsed: FormData) -> Form:
    photographs: list[Upload] = []
    fields: dict[str, list[str]] = {}
    for field, value in parsed.multi_items():
        if not isinstance(value, UploadFile):
            fields.setdefault(field, []).append(value)
        elif field == PHOTOGRAPH:
            photographs.append(Upload(file_name(value.filename or ""), await value.read()))
        else:
            raise Refusal(422, f"there is no field '{clean(field)}' for files; send photographs as '{PHOTOGRAPH}'")
    if not photographs:
        raise Refusal(422, f"there is no photograph; send at least one file as the field '{PHOTOGRAPH}'")
    return Form(photographs, fields)


def clean(text: str) -> str:
    """Without what is no character, and not too long, to be told again."""
    shown = "".join(one for one in text if one.isprintable())
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def file_name(path: str) -> str:
    """The last part of a path on whichever system; a quotation mark is sent as %22 by browsers."""
    return clean(path.replace("%22", '"').replace("\\", "/").rpartition("/")[2]) or PHOTOGRAPH


def check(photographs: Sequence[Upload], limits: Limits) -> None:
    """Raises `Refusal` for a file that is too large or of none of the formats by its content, and for photographs that
    have too many pixels by their headers; no pixel is decoded."""
    for name, content in photographs:
        if len(content) > limits.file_megabytes * MEGA:
            raise Refusal(413, f"{name} has more than {limits.file_megabytes:g} MB; send a smaller copy")
    if sum(map(_count_pixels, photographs)) > limits.megapixels * MEGA:
        told = photographs[0].name if len(photographs) == 1 else "the photographs together"
        raise Refusal(
            413, f"{told}: more than {limits.megapixels:g} million pixels; send smaller copies, or fewer at once"
        )


def _count_pixels(photograph: Upload) -> float:
    """By the header."""
    try:
        with Image.open(BytesIO(photograph.content), formats=FORMATS) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return math.inf
    except Exception as fault:  # Pillow's readers have no one error for a file that is damaged
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise Refusal(415, f"{photograph.name} is no {known} file that can be read") from fault
