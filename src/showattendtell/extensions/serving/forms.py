"""The form of a request, which is read within limits into memory only: photographs and options."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from showattendtell.data import image_limits
from showattendtell.data.image_limits import CostlyImageError, LargeImageError
from showattendtell.data.images import open_content
from showattendtell.extensions.serving.schemas import CaptionRequest, Limits, RequestError, Upload, clean

PHOTOGRAPH = "photograph"  # the field of the form that holds a file
FORMATS = tuple(name for name in image_limits.FORMATS if name != "PPM" and (name != "HEIF" or find_spec("pillow_heif")))
FIELDS = 32
FIELD_BYTES = 2000
MEGA = 1_000_000


class InMemoryParser(MultiPartParser):
    """Starlette's parser of forms without temporary files; the size is limited before it."""

    spool_max_size = 2**40


async def read_form(request: Request, limits: Limits) -> tuple[list[Upload], CaptionRequest]:
    """Read the form of a request: its photographs and options.

    Raises `RequestError` for other content, too many photographs, a timeout, a body as soon as it is too large, and
    invalid options.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "multipart/form-data":
        sent = clean(kind) or "nothing"
        raise RequestError(415, f"a form is needed, multipart/form-data with a field '{PHOTOGRAPH}'; {sent} was sent")
    maxima = {"max_files": limits.photographs, "max_fields": FIELDS, "max_part_size": FIELD_BYTES}
    try:
        async with asyncio.timeout(limits.seconds):
            form = await InMemoryParser(request.headers, _limited(request, limits), **maxima).parse()
    except MultiPartException as fault:
        raise RequestError(400, f"the form cannot be read ({fault.message.removesuffix('.')}); send it again") from None
    except ClientDisconnect:
        raise RequestError(400, "the form ended before all of it was received; send it again") from None
    except TimeoutError:
        raise RequestError(408, f"the form did not arrive within {limits.seconds:g} seconds; send less") from None
    fields = {name: [value for value in form.getlist(name) if value] for name in form}
    photographs = []
    for file in fields.pop(PHOTOGRAPH, []) or [""]:
        if not isinstance(file, UploadFile):
            raise RequestError(422, f"there is no photograph; send at least one file as the field '{PHOTOGRAPH}'")
        photographs.append(Upload(file_name(file.filename or ""), await file.read()))
    return photographs, read_options(fields)


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, up to its maximum size."""
    most = limits.request_megabytes * MEGA
    too_large = f"the request has more than {limits.request_megabytes:g} MB; send fewer or smaller photographs"
    if int(request.headers.get("content-length", 0)) > most:
        raise RequestError(413, too_large)
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > most:
            raise RequestError(413, too_large)
        yield chunk


def file_name(path: str) -> str:
    """Return the last part of a path of any operating system; browsers send a quotation mark as %22."""
    return clean(path.replace("%22", '"').replace("\\", "/").rpartition("/")[2]) or PHOTOGRAPH


def count_pixels(photographs: Sequence[Upload], limits: Limits) -> float:
    """Return the number of pixels of photographs according to their headers, without decoding them.

    Raises `RequestError` for a file that is too large or not of an accepted format, and for too many pixels in total.
    """
    for name, content in photographs:
        if len(content) > limits.file_megabytes * MEGA:
            raise RequestError(413, f"{name} has more than {limits.file_megabytes:g} MB; send a smaller copy")
    pixels = sum(_pixels(photograph, limits.megapixels * MEGA) for photograph in photographs)
    if pixels > limits.megapixels * MEGA:
        sent = photographs[0].name if len(photographs) == 1 else "the photographs together"
        raise RequestError(
            413, f"{sent}: more than {limits.megapixels:g} million pixels; send smaller copies, or fewer at once"
        )
    return pixels


def _pixels(photograph: Upload, most: float) -> float:
    """Return the number of pixels of a photograph, as it will be decoded if it may have at most this many."""
    try:
        with open_content(photograph.content, FORMATS, most) as image:
            return image.width * image.height
    except LargeImageError:
        return math.inf
    except CostlyImageError as error:
        raise RequestError(422, f"image {photograph.name} {error}") from None
    except Exception as error:  # Pillow raises many types for a damaged file
        format_names = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise RequestError(415, f"{photograph.name} is not a {format_names} file that can be read") from error


def read_options(fields: Mapping[str, list[Any]]) -> CaptionRequest:
    """Read the request options from the form's fields; raise `RequestError` if they are invalid."""
    is_list = {name: name == "model" or len(values) > 1 for name, values in fields.items()}  # two values are refused
    options = {name: values if is_list[name] else values[0] for name, values in fields.items() if values}
    try:
        return CaptionRequest.model_validate(options)
    except ValidationError as error:
        faults = []
        for detail in error.errors()[:3]:
            name = clean(str(detail["loc"][0])) if detail["loc"] else "a field"  # its name is not a string
            if detail["type"] == "extra_forbidden":
                known = ", ".join(CaptionRequest.model_fields)
                faults.append(f"there is no field '{name}'; available: photograph, {known}")
            else:
                faults.append(f"{name}: {detail['msg'][0].lower()}{detail['msg'][1:]}")
        raise RequestError(422, "; ".join(faults)) from None
