"""The served models by name, and their captions with the options of a request."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from PIL import Image

from showattendtell.data.images import decode_image
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.models.attention import Attention
from showattendtell.serving.limits import RequestError
from showattendtell.serving.requests import CaptionRequest, Look, Upload, clean
from showattendtell.visualization.image_captions import ImageCaptions

VARIANTS = 8
"""Number of beam sizes for which the pipeline of a model is kept."""


class RegisteredModel:
    """A checkpoint or an ensemble under the name that requests use."""

    def __init__(self, name: str, captioner: CaptioningPipeline):
        self.name, self._captioner = name, captioner
        self._pipeline = lru_cache(VARIANTS)(self._with_beam_size)

    @property
    def hard(self) -> list[Attention]:
        """The modules of hard attention, whose inference mode a request can choose."""
        attentions = (model.module.captioner.attention for model in self._captioner.models)
        return [attention for attention in attentions if attention.stochastic]

    @property
    def decoding(self) -> Decoding:
        return self._captioner.models[0].module.decoding

    def describe(self, photographs: list[Image.Image], wishes: CaptionRequest) -> list[ImageCaptions]:
        """Return the captions of each photograph; called by one thread at a time."""
        pipeline = self._pipeline(wishes.beam_size)
        pipeline.seed = self._captioner.seed if wishes.seed is None else wishes.seed
        with self._attention_mode(wishes.attention):
            return pipeline(photographs)

    def _with_beam_size(self, beam_size: int | None) -> CaptioningPipeline:
        """Return a pipeline of the same models with another beam size; their weights are shared."""
        decoding = self._beam_search(beam_size) if beam_size else self.decoding
        models = [
            model._replace(
                module=ImageCaptioner(model.module.encoder, model.module.captioner, model.module.vocabulary, decoding)
            )
            for model in self._captioner.models
        ]
        return CaptioningPipeline(self.name, models, self._captioner.seed)

    def _beam_search(self, beam_size: int) -> Decoding:
        if not isinstance(self.decoding, BeamSearch):
            raise RequestError(422, "beam_size: this server writes otherwise than by beams alone; leave it out")
        try:
            return dataclasses.replace(self.decoding, beam_size=beam_size)
        except ValueError as fault:
            raise RequestError(422, f"beam_size: {fault}") from None

    @contextmanager
    def _attention_mode(self, mode: Look | None) -> Iterator[None]:
        before = [attention.inference_mode for attention in self.hard]
        for attention in self.hard:
            attention.inference_mode = mode or attention.inference_mode
        try:
            yield
        finally:
            for attention, mode_before in zip(self.hard, before, strict=True):
                attention.inference_mode = mode_before


class ModelRegistry:
    """The served models by name; the first one is the default."""

    def __init__(self, captioners: Sequence[CaptioningPipeline]):
        names = names_of([captioner.name for captioner in captioners])
        self.by_name = {name: RegisteredModel(name, one) for name, one in zip(names, captioners, strict=True)}

    @property
    def names(self) -> list[str]:
        return list(self.by_name)

    @property
    def beam_size(self) -> int | None:
        """The default beam size; None if the models do not use beam search."""
        decoding = self.by_name[self.names[0]].decoding
        return decoding.beam_size if isinstance(decoding, BeamSearch) else None

    def describe(self, photographs: Sequence[Upload], wishes: CaptionRequest) -> dict[str, list[ImageCaptions]]:
        """Return the captions of each photograph by the name of the requested model.

        Raises `RequestError` for a damaged photograph.
        """
        chosen = [self._find(name) for name in dict.fromkeys(wishes.model or self.names[:1])]
        try:
            images = [decode_image(photograph.content, photograph.name) for photograph in photographs]
        except UserError as fault:
            raise RequestError(422, str(fault)) from None
        return {model.name: model.describe(images, wishes) for model in chosen}

    def _find(self, name: str) -> RegisteredModel:
        if name not in self.by_name:
            raise RequestError(422, f"there is no model '{clean(name)}'{did_you_mean(clean(name), self.names)}")
        return self.by_name[name]


def names_of(checkpoints: Sequence[str]) -> list[str]:
    """Return FOLDER/FILE of each checkpoint without the path to it; a repeated name becomes `FOLDER/FILE 2`."""
    counts: Counter[str] = Counter()
    names = []
    for checkpoint in checkpoints:
        name = " + ".join(str(Path(*Path(path).parts[-2:])) for path in checkpoint.split(" + "))
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return names
