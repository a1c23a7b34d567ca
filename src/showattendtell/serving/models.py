"""The models that are served, each by its name, and what they say of photographs in the way that is wished."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from showattendtell.captioning import ImageCaptioner
from showattendtell.decode.decoding import Decoding
from showattendtell.describing import Description, PhotoCaptioner, load
from showattendtell.errors import UserError, did_you_mean
from showattendtell.model.hard import HardAttention
from showattendtell.serving.refusal import Refusal
from showattendtell.serving.uploads import Upload
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

    def describe(self, photographs: Sequence[Upload], wishes: Wishes) -> list[Description]:
        captioner = self._writing(wishes.beam_size, wishes.seed)
        with self._looking(wishes.attention):
            return [captioner(photograph.content) for photograph in photographs]

    def _write_as(self, beam_size: int | None, seed: int) -> PhotoCaptioner:
        """The same models, writing in another way."""
        decoding = self._with_beams(beam_size) if beam_size else self.decoding
        return PhotoCaptioner(
            self.name, [one._replace(module=_writing(one.module, decoding)) for one in self._captioner.models], seed
        )

    def _with_beams(self, beam_size: int) -> Decoding:
        if not hasattr(self.decoding, "beam_size"):
            raise Refusal(422, "beam_size: this server draws its captions, and has no beams; leave it out")
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
    """The models by their names, the first of which is asked where a request names none.

    Args:
        checkpoints: for each model the checkpoints that write as one.
    """

    def __init__(self, checkpoints: Sequence[Sequence[str]], device: str, decoding: Decoding):
        names = names_of(checkpoints)
        loaded = (load(group, device=device, decoding=decoding) for group in checkpoints)
        self.beam_size: int | None = getattr(decoding, "beam_size", None)
        self.by_name = {name: Model(name, one) for name, one in zip(names, loaded, strict=True)}

    @property
    def names(self) -> list[str]:
        return list(self.by_name)

    def describe(self, photographs: Sequence[Upload], wishes: Wishes) -> dict[str, list[Description]]:
        """By the name of each model wished for, what it says of each photograph; a `Refusal` for what cannot be read."""
        chosen = [self._find(name) for name in dict.fromkeys(wishes.model or self.names[:1])]
        try:
            return {model.name: model.describe(photographs, wishes) for model in chosen}
        except UserError as fault:
            raise Refusal(422, str(fault)) from None

    def _find(self, name: str) -> Model:
        if name not in self.by_name:
            raise Refusal(422, f"there is no model '{name[:100]}'{did_you_mean(name[:100], self.names)}")
        return self.by_name[name]


def names_of(checkpoints: Sequence[Sequence[str]]) -> list[str]:
    """FOLDER/FILE of each, which tells nothing of where that is; the second of a name is `FOLDER/FILE 2`."""
    counts: Counter[str] = Counter()
    names = []
    for group in checkpoints:
        name = " + ".join(str(Path(*Path(path).parts[-2:])) for path in group)
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return names
