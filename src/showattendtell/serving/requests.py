"""Parsing of requests: a form with photographs, read within limits into memory only."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from showattendtell.data.image_limits import CostlyImageError
from showattendtell.data.images import open_content
from showattendtell.serving.limits import MEGA, Limits, RequestError

PHOTOGRAPH = "photograph"
"""The field of the form that holds a file."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
FIELDS = 32
FIELD_BYTES = 2000
LONGEST_NAME = 120


class Upload(NamedTuple):
    """An uploaded photograph."""

    name: str
    content: bytes


class Form(NamedTuple):
    """Content of a request: the photographs, and the values of each other field."""

    photographs: list[Upload]
    fields: dict[str, list[str]]


class InMemory(MultiPartParser):
    """Starlette's parser without temporary files; the size is limited before it."""

    spool_max_size = 2**40


async def read_form(request: Request, limits: Limits) -> Form:
    """Read the form of a request.

    Raises `RequestError` for other content, too many photographs, a timeout, and a body as soon as it is too large.
    """
    kind, _ = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        sent = clean(kind.decode("latin-1")) or "nothing"
        raise RequestError(415, f"a form is needed, multipart/form-data with a field '{PHOTOGRAPH}'; {sent} was sent")
    parts = {"max_files": limits.photographs, "max_fields": FIELDS, "max_part_size": FIELD_BYTES}
    try:
        async with asyncio.timeout(limits.seconds):
            parsed = await InMemory(request.headers, _limited(request, limits), **parts).parse()
    except MultiPartException as fault:
        raise RequestError(400, f"the form cannot be read ({fault.message.removesuffix('.')}); send it anew") from None
    except ClientDisconnect:
        raise RequestError(400, "the form ended before all of it had come; send it anew") from None
    except asyncio.CancelledError:
        raise RequestError(503, "the server ends; come again when it is started anew") from None
    except TimeoutError:
        raise RequestError(408, f"the form did not come within {limits.seconds:g} seconds; send less") from None
    return await _sorted(parsed)


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, up to its maximum size."""
    most = limits.request_megabytes * MEGA
    length, fault = (
        request.headers.get("content-length", "0"),
        RequestError(
            413, f"the request has more than {limits.request_megabytes:g} MB; send fewer or smaller photographs"
        ),
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
            raise RequestError(422, f"there is no field '{clean(field)}' for files; send photographs as '{PHOTOGRAPH}'")
    if not photographs:
        raise RequestError(422, f"there is no photograph; send at least one file as the field '{PHOTOGRAPH}'")
    return Form(photographs, fields)


def clean(text: str) -> str:
    """Remove unprintable characters and shorten the text, for use in messages."""
    shown = "".join(one for one in text if one.isprintable())
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


MOST_BEAMS = 20

Look = Literal["sample", "argmax", "expectation"]


class CaptionRequest(BaseModel):
    """The optional fields of the form, which come with the photographs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[
        tuple[str, ...], Field(description="which of the models caption the photographs; the first of all by default")
    ] = ()
    beam_size: Annotated[
        int | None, Field(ge=1, le=MOST_BEAMS, description="how many captions are kept open while one is searched")
    ] = None
    attention: Annotated[
        Look | None,
        Field(description="what a model with hard attention looks at; as in training by default. Others heed it not."),
    ] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63, description="decides what is drawn at random")] = None


def read_request(fields: Mapping[str, list[str]]) -> CaptionRequest:
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
