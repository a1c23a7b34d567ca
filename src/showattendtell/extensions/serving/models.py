"""The served models by name, and the checks of the photographs and fields that requests send."""

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from PIL import Image

from showattendtell.data import image_limits
from showattendtell.data.image_limits import MAX_PIXELS, CostlyImageError, LargeImageError, bounded_open
from showattendtell.data.images import decode_image
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean, printable
from showattendtell.extensions.serving.schemas import CaptionForm, CaptionRequest, Limits, RequestError, Upload, clean
from showattendtell.inference.pipeline import CaptioningPipeline, stacked
from showattendtell.visualization.pages import ImageCaptions

FORMATS = tuple(name for name in image_limits.FORMATS if name != "PPM" and (name != "HEIF" or find_spec("pillow_heif")))
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
        pipeline = self._pipeline(**options.model_dump(include={"beam_size", "language"}, exclude_none=True))
        pipeline.seed = self._captioner.seed if options.seed is None else options.seed
        for attention, mode in self.hard.items():
            attention.inference_mode = options.attention or mode
        return list(pipeline.describe(photographs, stacked(pipeline.pixels(image) for _, image in photographs)))

    def _with_options(self, **changes: Any) -> CaptioningPipeline:
        """Return a pipeline of the same models with another beam size and language; their weights are shared."""
        try:
            decoding = dataclasses.replace(self.decoding, **changes)
            if decoding.language:
                self._captioner.models[0].module.vocabulary.language_token(decoding.language)
        except (TypeError, ValueError, UserError) as error:  # a TypeError where the decoding has no beam
            raise RequestError(422, printable(str(error))) from None
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
        """The default beam size; None if the models have no beam."""
        return getattr(self.by_name[self.names[0]].decoding, "beam_size", None)

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


def file_name(path: str) -> str:
    """Return the last part of a path of any operating system; browsers send a quotation mark as %22."""
    return clean(path.replace("%22", '"').replace("\\", "/").rpartition("/")[2]) or "photograph"


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


def describe_faults(errors: Sequence[Any]) -> str:
    """Return a sentence about the first errors of pydantic in the fields of a form."""
    faults = []
    for detail in errors[:3]:
        name = clean(str((*detail["loc"], "a field")[1]))
        if detail["type"] == "extra_forbidden":
            faults.append(f"there is no field '{name}'; available: {', '.join(CaptionForm.model_fields)}")
        else:
            faults.append(f"{name}: {detail['msg'][0].lower()}{detail['msg'][1:]}")
    return "; ".join(faults)
