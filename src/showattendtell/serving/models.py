"""The models that are served, each by its name, and what they say of photographs in the way that is wished."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from PIL import Image

from showattendtell.captioning import ImageCaptioner
from showattendtell.data.images import decode_image
from showattendtell.decode.decoding import Decoding
from showattendtell.decode.search import BeamSearch
from showattendtell.describing import Description, PhotoCaptioner
from showattendtell.errors import UserError, did_you_mean
from showattendtell.model.hard import HardAttention
from showattendtell.serving.refusal import Refusal
from showattendtell.serving.uploads import Upload, clean
from showattendtell.serving.wishes import Look, Wishes

VARIANTS = 8
"""Of a model's ways of writing that are kept ready."""


class Model:
    """A checkpoint, or several that write as one, under the name that it is asked for by."""

    def __init__(self, name: str, captioner: PhotoCaptioner):
        self.name, self._captioner = name, captioner
        self._writing = lru_cache(VARIANTS)(self._write_as)

    @property
    def hard(self) -> list[HardAttention]:
        """The hard attentions in it, whose way of looking can be chosen."""
        attentions = (model.module.captioner.attention for model in self._captioner.models)
        return [attention for attention in attentions if isinstance(attention, HardAttention)]

    @property
    def decoding(self) -> Decoding:
        return self._captioner.models[0].module.decoding

    def describe(self, photographs: list[Image.Image], wishes: Wishes) -> list[Description]:
        captioner = self._writing(wishes.beam_size, wishes.seed)
        with self._looking(wishes.attention):
            return captioner(photographs)

    def _write_as(self, beam_size: int | None, seed: int | None) -> PhotoCaptioner:
        """The same models, writing in another way."""
        decoding = self._with_beams(beam_size) if beam_size else self.decoding
        models = [one._replace(module=_writing(one.module, decoding)) for one in self._captioner.models]
        return PhotoCaptioner(self.name, models, self._captioner.seed if seed is None else seed)

    def _with_beams(self, beam_size: int) -> Decoding:
        if not isinstance(self.decoding, BeamSearch):
            raise Refusal(422, "beam_size: this server writes otherwise than by beams alone; leave it out")
        try:
            return dataclasses.replace(self.decoding, beam_size=beam_size)
        except ValueError as fault:
            raise Refusal(422, f"beam_size: {fault}") from None

    @contextmanager
    def _looking(self, look: Look | None) -> Iterator[None]:
        before = [attention.test for attention in self.hard]
        for attention in self.hard:
            attention.test = look or attention.test
        try:
            yield
        finally:
            for attention, test in zip(self.hard, before, strict=True):
                attention.test = test


def _writing(module: ImageCaptioner, decoding: Decoding) -> ImageCaptioner:
    return ImageCaptioner(module.encoder, module.captioner, module.vocabulary, decoding)


class Models:
    """The models by their names, the first of which is asked where a request names none."""

    def __init__(self, captioners: Sequence[PhotoCaptioner]):
        names = names_of([captioner.name for captioner in captioners])
        self.by_name = {name: Model(name, one) for name, one in zip(names, captioners, strict=True)}

    @property
    def names(self) -> list[str]:
        return list(self.by_name)

    @property
    def beam_size(self) -> int | None:
        """Where a request wishes no other; None where captions are not written by beams alone."""
        decoding = self.by_name[self.names[0]].decoding
        return decoding.beam_size if isinstance(decoding, BeamSearch) else None

    def describe(self, photographs: Sequence[Upload], wishes: Wishes) -> dict[str, list[Description]]:
        """By the name of each model wished for what it says of each photograph; a `Refusal` for one that is damaged."""
        chosen = [self._find(name) for name in dict.fromkeys(wishes.model or self.names[:1])]
        try:
            images = [decode_image(photograph.content, photograph.name) for photograph in photographs]
        except UserError as fault:
            raise Refusal(422, str(fault)) from None
        return {model.name: model.describe(images, wishes) for model in chosen}

    def _find(self, name: str) -> Model:
        if name not in self.by_name:
            raise Refusal(422, f"there is no model '{clean(name)}'{did_you_mean(clean(name), self.names)}")
        return self.by_name[name]


def names_of(checkpoints: Sequence[str]) -> list[str]:
    """FOLDER/FILE of each, which tells nothing of where that is; the second of a name is `FOLDER/FILE 2`."""
    counts: Counter[str] = Counter()
    names = []
    for checkpoint in checkpoints:
        name = " + ".join(str(Path(*Path(path).parts[-2:])) for path in checkpoint.split(" + "))
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return names
