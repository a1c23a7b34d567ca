"""The served models by name, and their captions with the options of a request."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

from PIL import Image
from torch import Tensor

from showattendtell.data.image_limits import MAX_PIXELS
from showattendtell.data.images import decode_image
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean
from showattendtell.extensions.serving.schemas import CaptionRequest, RequestError, Upload, clean
from showattendtell.inference.pipeline import CaptioningPipeline, stacked
from showattendtell.visualization.pages import ImageCaptions

VARIANTS = 8  # number of beam sizes and languages for which the pipeline of a model is kept


class RegisteredModel:
    """A checkpoint or an ensemble under the name that requests use.

    hard: the modules of hard attention, whose inference mode a request can choose, and the mode without a choice.
    """

    def __init__(self, name: str, captioner: CaptioningPipeline):
        captioner.check_reads_pixels()
        self.name, self._captioner, self.pixels = name, captioner, captioner.pixels
        attentions = (model.module.captioner.attention for model in captioner.models)
        self.hard = {attention: attention.inference_mode for attention in attentions if attention.samples}
        self._pipeline = lru_cache(VARIANTS)(self._with_options)
        module = captioner.models[0].module
        self.decoding = module.decoding
        # those that a request can choose from; that of the server's setting comes first
        self.languages = sorted(module.vocabulary.languages, key=lambda language: language != module.language)

    def describe(
        self, photographs: Sequence[tuple[str, Image.Image]], inputs: Sequence[Tensor], options: CaptionRequest
    ) -> list[ImageCaptions]:
        """Return the captions of photographs, see `CaptioningPipeline.describe`; called by one thread at a time."""
        pipeline = self._pipeline(options.beam_size, options.language)
        pipeline.seed = self._captioner.seed if options.seed is None else options.seed
        for attention, mode in self.hard.items():
            attention.inference_mode = options.attention or mode
        return list(pipeline.describe(photographs, inputs))

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
        self._lock = Lock()

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
        # before the lock, since large photographs take a second
        inputs = [stacked(map(model.pixels, images)) for model in models]
        pictures = [(photograph.name, image) for photograph, image in zip(photographs, images, strict=True)]
        with self._lock:
            return {
                model.name: model.describe(pictures, pixels, options)
                for model, pixels in zip(models, inputs, strict=True)
            }
