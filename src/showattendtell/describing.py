"""Trained models as a program uses them: a photograph in, what they say of it and where they looked out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from showattendtell.captioning import Choir, ImageCaptioner
from showattendtell.checkpoint import Restored, restore_together, save_portable
from showattendtell.data.images import find_images
from showattendtell.data.photographs import Photograph, as_image, name_of
from showattendtell.decode.decoding import Decoding
from showattendtell.decode.search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.model.loops import plain_torch
from showattendtell.portable import SHIPPED
from showattendtell.records import Box, Generated
from showattendtell.report.model_card import model_card
from showattendtell.report.pages import Account, Illustrated

TOGETHER = 8
"""Photographs that are captioned at once."""

BEAM_SIZE = 3


class Telling(NamedTuple):
    """A caption of T words and where the model looked.

    words              those that were said, without the end
    log_probabilities  (T,) or, where the caption ended by itself, (T + 1,): of each word given those before, and of the
                       end
    weights            (T or T + 1, rows, columns) alpha, each step sums to 1
    gates              (T or T + 1,) beta, how much of what it looked at the model let in
    """

    words: tuple[str, ...]
    log_probabilities: np.ndarray
    weights: np.ndarray
    gates: np.ndarray

    @property
    def caption(self) -> str:
        return " ".join(self.words)

    @property
    def log_probability(self) -> float:
        """Of the whole caption, its end included."""
        return float(self.log_probabilities.sum())


@dataclass(frozen=True, eq=False)
class Description:
    """What a model says of a photograph: the best caption, and the others that were asked for.

    name        the photograph's file, or what it was given as
    photograph  upright RGB
    seen        the part of it that the model saw, in fractions of its width and height
    captions    best first
    """

    name: str
    photograph: Image.Image
    seen: Box
    captions: tuple[Telling, ...]

    @property
    def best(self) -> Telling:
        return self.captions[0]

    @property
    def caption(self) -> str:
        return self.best.caption

    @property
    def words(self) -> tuple[str, ...]:
        return self.best.words

    @property
    def log_probabilities(self) -> np.ndarray:
        return self.best.log_probabilities

    @property
    def weights(self) -> np.ndarray:
        return self.best.weights

    @property
    def gates(self) -> np.ndarray:
        return self.best.gates

    @property
    def maps(self) -> np.ndarray:
        """Where the model looked at each word, on the photograph's own pixels: (T, height, width), 1 at each peak and 0
        where the model did not see. Computed when it is asked for."""
        from showattendtell.report.heatmaps import map_onto_photograph

        frame, (width, height) = self.seen.scaled(*self.photograph.size), self.photograph.size
        grids = self.weights[: len(self.words)]
        maps = [map_onto_photograph(grid, frame, width, height) for grid in grids]
        return np.stack(maps) if maps else np.zeros((0, height, width), np.float32)

    def save(self, path: str | Path) -> None:
        """The picture with a panel a word, as `.png`; or a moving one, as `.gif` or `.webp`."""
        from showattendtell.report.drawing import draw_picture

        draw_picture(*self.as_drawn(), Path(path))

    def as_drawn(self) -> tuple[Image.Image, tuple[str, ...], np.ndarray, np.ndarray, Box]:
        """As pictures of it are drawn from: with the part that was seen in the photograph's pixels."""
        return self.photograph, self.words, self.weights, self.gates, self.seen.scaled(*self.photograph.size)

    def as_account(self) -> Account:
        """As the page of photographs takes it."""
        return Account([Illustrated(told.words, told.weights, told.gates) for told in self.captions], self.seen)

    def __str__(self) -> str:
        return self.caption

    def __repr__(self) -> str:
        return f"<{self.name}: {self.caption}>"


class PhotoCaptioner(ModelHubMixin):
    """A trained model that captions photographs; or several with one vocabulary that write as one, with maps of one.

    `save_pretrained(folder)` writes it as a folder that `load`, `from_pretrained` and every command's `checkpoint=`
    take; `push_to_hub(owner/name)` publishes that.

    Args:
        name: what it is called where several are compared.
        seed: decides what is drawn at random for each batch; None leaves torch's generator as it is.
    """

    def __init__(self, name: str, models: Sequence[Restored], seed: int | None = 1):
        self.name, self.models, self.seed = name, tuple(models), seed
        self._choir = Choir([model.module for model in models])

    @property
    def config(self) -> DictConfig:
        """What the first of the models was trained with."""
        return self.models[0].config

    @property
    def _first(self) -> ImageCaptioner:
        return self.models[0].module

    def __call__(self, photographs: Photograph | Sequence[Photograph]) -> Any:
        """A `Description` of one photograph; a list of them for a list, and for a folder of image files by their names.

        Raises `UserError` for what cannot be read.
        """
        several = photographs if isinstance(photographs, list | tuple) else _folder(photographs)
        if several is not None:
            return list(self.stream(several))
        return next(self.stream([photographs]))  # type: ignore[list-item]

    def stream(
        self, photographs: Iterable[Photograph], batch_size: int = TOGETHER, faults: list[str] | None = None
    ) -> Iterator[Description]:
        """Descriptions one after the other, of as many photographs as there are; a batch of them is held at a time.

        Args:
            faults: where this is given, a photograph that cannot be read is passed over and its fault added here.
        """
        each = chain.from_iterable(_folder(one) or [one] for one in photographs)
        while batch := list(islice(each, batch_size)):
            pictures = [opened for opened in (_open(one, faults) for one in batch) if opened]
            if pictures:
                yield from self._describe(pictures)

    def _describe(self, pictures: Sequence[tuple[str, Image.Image]]) -> Iterator[Description]:
        modules = [model.module for model in self.models]
        seen = [
            torch.stack([module.encoder.preprocessing(image) for _, image in pictures]).to(module.device)
            for module in modules
        ]
        mirrors = [pixels.flip(-1) for pixels in seen] if self._first.decoding.mirrored else []
        with torch.random.fork_rng(enabled=self.seed is not None), plain_torch():
            if self.seed is not None:
                torch.manual_seed(self.seed)
            written = self._choir.write([*seen, *mirrors])
        for (name, image), captions in zip(pictures, written, strict=True):
            frame = self._first.encoder.preprocessing.crop_box(*image.size)
            part = frame.scaled(1 / image.width, 1 / image.height)
            yield Description(name, image, part, tuple(map(self._in_words, captions)))

    def _in_words(self, caption: Generated) -> Telling:
        return Telling(
            tuple(self._first.vocabulary.decode(caption.tokens)),
            caption.log_probabilities.numpy(),
            caption.weights.unflatten(1, self._first.encoder.grid).numpy(),
            caption.gates.numpy(),
        )

    def __repr__(self) -> str:
        return f"PhotoCaptioner({self.name!r})"

    def _save_pretrained(self, save_directory: Path) -> None:
        if len(self.models) > 1:
            raise UserError(f"{self.name} are {len(self.models)} models; save each of them on its own")
        save_portable(self.models[0], save_directory)

    def generate_model_card(self, *args: Any, **about: Any) -> ModelCard:
        """What `report.model_card` takes besides may be given as `model_card_kwargs` of `save_pretrained`."""
        return model_card(self.models[0].card, **about)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, revision: str | None = None, **settings: Any
    ) -> "PhotoCaptioner":
        """As `load`, from a folder or the hub; the name of a branch, tag or commit may be given as `revision`."""
        name = str(pretrained_model_name_or_path)
        return load(f"{name}@{revision}" if revision else name, **settings)


def load(
    checkpoint: str | Path | Sequence[str | Path] = SHIPPED,
    *,
    device: str = "auto",
    decoding: Decoding | None = None,
    look: Literal["sample", "argmax", "expectation"] | None = None,
    seed: int | None = 1,
    **search: Any,
) -> PhotoCaptioner:
    """A trained model, ready to caption photographs.

    >>> captioner = load()
    >>> told = captioner("docs/figures/skater.jpg")
    >>> told.caption
    'a man is doing a trick on a ramp'
    >>> told.maps.shape == (len(told.words), told.photograph.height, told.photograph.width)
    True
    >>> [word for word, log_p in zip(told.words, told.log_probabilities) if log_p > -0.1]
    ['a', 'a', 'a']
    >>> load(beam_size=1, max_length=3)("docs/figures/skater.jpg").words
    ('a', 'man', 'is')

    Args:
        checkpoint: a `best.ckpt` of training, a folder that `save_pretrained` wrote, the name of a model that comes
            with the package, or of one on the hub, `owner/name`; several write as one.
        device: `cpu`, `cuda`, `cuda:1`, ..., or `auto` for the GPU if there is one.
        decoding: how captions are written, beam search by default.
        look: what hard attention looks at; as in training by default.
        seed: decides what is drawn at random; None leaves torch's generator as it is.
        search: settings of `BeamSearch` where no decoding is given, as `beam_size=5`.

    Raises `UserError` for a checkpoint that is missing, damaged or none of ours, and for settings that do not exist.
    """
    paths = [str(path) for path in ([checkpoint] if isinstance(checkpoint, str | Path) else checkpoint)]
    if decoding and search:
        raise UserError(f"{', '.join(search)} belong to the decoding that is given; set them there")
    try:
        chosen = decoding or BeamSearch(**{"beam_size": BEAM_SIZE, **search})
    except (TypeError, ValueError) as fault:
        raise UserError(f"captions cannot be written so: {fault}") from None
    attention = OmegaConf.create({"test": look}) if look else None
    return PhotoCaptioner(" + ".join(paths), restore_together(paths, device, chosen, attention), seed)


def _folder(photograph: Any) -> list[Photograph] | None:
    """The image files of a folder; None for what is none."""
    is_folder = isinstance(photograph, str | Path) and Path(photograph).is_dir()
    return [*find_images([str(photograph)])] if is_folder else None


def _open(photograph: Photograph, faults: list[str] | None) -> tuple[str, Image.Image] | None:
    """Its name and what it shows; None, and its fault told, where it cannot be read and faults are gathered."""
    try:
        return name_of(photograph), as_image(photograph)
    except UserError as fault:
        if faults is None:
            raise
        faults.append(str(fault))
        return None
