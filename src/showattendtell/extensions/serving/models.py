"""The served models, and the checks of the photographs that requests send."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
from showattendtell.extensions.serving.schemas import MEGA, CaptionRequest, Limits, RequestError, Upload, clean
from showattendtell.inference.pipeline import CaptioningPipeline, stacked
from showattendtell.visualization.pages import ImageCaptions

FORMATS = tuple(name for name in image_limits.FORMATS if name != "PPM" and (name != "HEIF" or find_spec("pillow_heif")))
VARIANTS = 8  # number of beam sizes for which the pipeline of a model is kept

Outputs = dict[str, list[ImageCaptions]]
"""The captions of each photograph, by model."""


class ServedModel:
    """A checkpoint or an ensemble, with the options of each request.

    hard: the modules of hard attention, whose inference mode a request can choose, and the mode without a choice.
    """

    def __init__(self, captioner: CaptioningPipeline):
        captioner.check_reads_pixels()
        self._captioner = captioner
        attentions = (model.module.captioner.attention for model in captioner.models)
        self.hard = {attention: attention.inference_mode for attention in attentions if attention.samples}
        self._pipeline = lru_cache(VARIANTS)(self._with_options)
        self.decoding = captioner.models[0].module.decoding

    def describe(self, photographs: Sequence[tuple[str, Image.Image]], options: CaptionRequest) -> list[ImageCaptions]:
        """Return the captions of photographs with these names; called by one thread at a time."""
        pipeline = self._pipeline(**options.model_dump(include={"beam_size"}, exclude_none=True))
        pipeline.seed = self._captioner.seed if options.seed is None else options.seed
        for attention, mode in self.hard.items():
            attention.inference_mode = options.attention or mode
        return list(pipeline.describe(photographs, stacked(pipeline.pixels(image) for _, image in photographs)))

    def _with_options(self, **changes: Any) -> CaptioningPipeline:
        """Return a pipeline of the same models with another beam size; their weights are shared."""
        try:
            decoding = dataclasses.replace(self.decoding, **changes)
        except (TypeError, ValueError, UserError) as error:  # a TypeError where the decoding has no beam
            raise RequestError(422, printable(str(error))) from None
        models = []
        for model in self._captioner.models:
            parts = (model.module.encoder, model.module.captioner, model.module.vocabulary)
            models.append(model._replace(module=ImageCaptioner(*parts, decoding)))
        return CaptioningPipeline(self._captioner.name, models, self._captioner.seed)


def describe(
    models: Mapping[str, ServedModel],
    photographs: Sequence[Upload],
    options: CaptionRequest,
    max_pixels: float = MAX_PIXELS,
) -> Outputs:
    """Return the captions of each photograph, of at most `max_pixels`, by the name of the requested models.

    Raises `RequestError` for a damaged photograph.
    """
    names = dict.fromkeys(options.model or [*models][:1])
    for name in map(clean, names.keys() - models.keys()):
        raise RequestError(422, f"there is no model '{name}'{did_you_mean(name, models)}")
    try:
        images = [(name, decode_image(content, name, max_pixels)) for name, content in photographs]
    except UserError as error:
        raise RequestError(422, str(error)) from None
    return {name: models[name].describe(images, options) for name in names}


def check_pixels(photographs: Sequence[Upload], limits: Limits) -> None:
    """Read the headers of photographs.

    Raises `RequestError` for a file that is too large or not of an accepted format, and for too many pixels in total.
    """
    max_pixels, pixels = limits.megapixels * MEGA, 0.0
    for name, content in photographs:
        if len(content) > limits.file_megabytes * MEGA:
            raise RequestError(413, f"{name} has more than {limits.file_megabytes:g} MB; send a smaller copy")
        try:
            with bounded_open(BytesIO(content), FORMATS, max_pixels) as image:
                pixels += image.width * image.height
        except LargeImageError:
            pixels = math.inf
        except CostlyImageError as error:
            raise RequestError(422, f"image {name} {error}") from None
        except Exception as error:  # Pillow raises many types for a damaged file
            format_names = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            raise RequestError(415, f"{name} is not a {format_names} file that can be read") from error
    if pixels > max_pixels:
        sent = photographs[0].name if len(photographs) == 1 else "the photographs together"
        raise RequestError(
            413, f"{sent}: more than {limits.megapixels:g} million pixels; send smaller copies, or fewer at once"
        )
