"""From a request to captions: its form, which is read within limits into memory only, and the served models by name."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from showattendtell.data import image_limits
from showattendtell.data.image_limits import MAX_PIXELS, CostlyImageError, LargeImageError, bounded_open
from showattendtell.data.images import decode_image
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean
from showattendtell.extensions.serving.schemas import CaptionRequest, Limits, RequestError, Upload, clean
from showattendtell.inference.pipeline import CaptioningPipeline, stacked
from showattendtell.visualization.pages import ImageCaptions

PHOTOGRAPH = "photograph"  # the field of the form that holds a file
FORMATS = tuple(name for name in image_limits.FORMATS if name != "PPM" and (name != "HEIF" or find_spec("pillow_heif")))
FIELDS = 32
FIELD_BYTES = 2000
MEGA = 1_000_000
VARIANTS = 8  # number of beam sizes and languages for which the pipeline of a model is kept


class RegisteredModel:
    """A checkpoint or an ensemble under the name that requests use.

    hard: the modules of hard attention, whose inference mode a request can choose, and the mode without a choice.
    """

    def __init__(self, name: str, captioner: CaptioningPipeline):
        captioner.check_reads_pixels()
        self.name, self._captioner = name, captioner
        attentions = (model.module.captioner.attention for model in captioner.models)
        self.hard = {attention: attention.inference_mode for attention in attentions if attention.samples}
        self._pipeline = lru_cache(VARIANTS)(self._with_options)
        module = captioner.models[0].module
        self.decoding = module.decoding
        # those that a request can choose from; that of the server's setting comes first
        self.languages = sorted(module.vocabulary.languages, key=lambda language: language != module.language)

    def describe(self, photographs: Sequence[tuple[str, Image.Image]], options: CaptionRequest) -> list[ImageCaptions]:
        """Return the captions of photographs with these names; called by one thread at a time."""
        pipeline = self._pipeline(options.beam_size, options.language)
        pipeline.seed = self._captioner.seed if options.seed is None else options.seed
        for attention, mode in self.hard.items():
            attention.inference_mode = options.attention or mode
        return list(pipeline.describe(photographs, stacked(pipeline.pixels(image) for _, image in photographs)))

    def _with_options(self, beam_size: int | None, language: str | None) -> CaptioningPipeline:
        """Return a pipeline of the same models with another beam size and language; their weights are shared."""
        decoding = self.decoding
        if beam_size and not isinstance(decoding, BeamSearch):
            raise RequestError(422, "beam_size: this server does not decode by plain beam search; leave it out")
        if language and language not in self.languages:
            hint = did_you_mean(clean(language), self.languages) if self.languages else "; leave language out"
            raise RequestError(422, f"{self.name} does not write the language '{clean(language)}'{hint}")
        changes = {name: value for name, value in (("beam_size", beam_size), ("language", language)) if value}
        try:
            decoding = dataclasses.replace(decoding, **changes)  # type: ignore[arg-type]
        except ValueError as error:
            raise RequestError(422, f"beam_size: {error}") from None
        models = []
        for model in self._captioner.models:
            parts = (model.module.encoder, model.module.captioner, model.module.vocabulary)
            models.append(model._replace(module=ImageCaptioner(*parts, decoding)))
        return CaptioningPipeline(self.name, models, self._captioner.seed)


class ModelRegistry:
    """The served models by name; the first one is the default."""

    def __init__(self, captioners: Sequence[CaptioningPipeline]):
        self.by_name = {captioner.name: RegisteredModel(captioner.name, captioner) for captioner in captioners}
        self.names = list(self.by_name)

    @property
    def beam_size(self) -> int | None:
        """The default beam size; None if the models do not use beam search."""
        decoding = self.by_name[self.names[0]].decoding
        return decoding.beam_size if isinstance(decoding, BeamSearch) else None

    def describe(
        self, photographs: Sequence[Upload], options: CaptionRequest, max_pixels: float = MAX_PIXELS
    ) -> dict[str, list[ImageCaptions]]:
        """Return the captions of each photograph, of at most `max_pixels`, by the name of the requested model.

        Raises `RequestError` for a damaged photograph.
        """
        names = dict.fromkeys(options.model or self.names[:1])
        for name in map(clean, names.keys() - self.by_name.keys()):
            raise RequestError(422, f"there is no model '{name}'{did_you_mean(name, self.names)}")
        models = [self.by_name[name] for name in names]
        try:
            images = [decode_image(photograph.content, photograph.name, max_pixels) for photograph in photographs]
        except UserError as error:
            raise RequestError(422, str(error)) from None
        pictures = [(photograph.name, image) for photograph, image in zip(photographs, images, strict=True)]
        return {model.name: model.describe(pictures, options) for model in models}


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


def check_pixels(photographs: Sequence[Upload], limits: Limits) -> None:
    """Read the headers of photographs.

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


def _pixels(photograph: Upload, most: float) -> float:
    """Return the number of pixels of a photograph, as it will be decoded if it may have at most this many."""
    try:
        with bounded_open(BytesIO(photograph.content), FORMATS, most) as image:
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
    options = {}
    for name, values in fields.items():
        if values:  # of other fields, two values are refused
            options[name] = values if name == "model" or len(values) > 1 else values[0]
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
