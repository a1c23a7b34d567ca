"""Captioning pipeline: from photographs to captions and attention maps."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from PIL import Image
from pydantic import Field
from torch import Tensor

from showattendtell.config.names import MEANT
from showattendtell.config.schemas import InferenceAttentionSettings
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.confidence import Confidence
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError, did_you_mean
from showattendtell.images.reading import Photograph, as_image, find_images, name_of
from showattendtell.loading.hub import BUNDLED
from showattendtell.loading.models import IN_MEMORY, LoadedModel, load_models, save_model_folder
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.results.tables import model_card
from showattendtell.runtime.files import new_folder
from showattendtell.runtime.process import paused_collection
from showattendtell.settings import PositiveInt, Seed, checked
from showattendtell.text.tokenizers import PlainTokenizer
from showattendtell.types import CaptionOutput
from showattendtell.visualization.pages import ImageCaptions

BATCH_SIZE = 8
"""Default batch size in photographs."""

BLANK = "␣"
"""The word of a token that adds only a space to the caption."""

MAX_BATCH_PIXELS = 100_000_000
"""A batch of files ends after the photograph that exceeds this number of pixels, which take 300 MB."""


class CaptioningPipeline(ModelHubMixin):
    """A trained model that captions photographs, or an ensemble of models with one vocabulary.

    The attention maps of an ensemble are those of its first model. `save_pretrained(folder)` writes a folder that
    `load`, `from_pretrained` and the setting `checkpoint` of commands accept; `push_to_hub(owner/name)` publishes it.

    Args:
        name: heading in comparisons of several pipelines.
        seed: random seed of each photograph; None does not change torch's generator.
    """

    def __init__(self, name: str, models: Sequence[LoadedModel], seed: int | None = 1):
        self.name, self.models, self.seed = name, tuple(models), seed
        self._ensemble = ImageCaptionerEnsemble([model.module for model in models], self.confidence)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the first model was trained with."""
        return self.models[0].record

    @property
    def confidence(self) -> Confidence | None:
        """The confidence of the model; None if it has none, or for an ensemble."""
        return self.models[0].confidence if len(self.models) == 1 else None

    @property
    def device(self) -> torch.device:
        """The device of the first model."""
        return self._first.device

    @property
    def is_deterministic(self) -> bool:
        """Whether captions do not depend on random draws."""
        attentions = [model.module.captioner.attention for model in self.models]
        samples = any(attention.inference_mode == "sample" for attention in attentions)
        return isinstance(self._first.decoding, BeamSearch) and not samples

    @property
    def _first(self) -> ImageCaptioner:
        return self.models[0].module

    def __call__(self, photographs: Photograph | Sequence[Photograph]) -> Any:
        """Caption photographs.

        Args:
            photographs: one photograph or its http or https URL, a list of them, or a folder of image files.

        Returns:
            An `ImageCaptions` for one photograph, otherwise a list of them.

        Raises:
            UserError: a photograph cannot be read.
        """
        if isinstance(photographs, list | tuple):
            return list(self.stream(photographs))
        outputs = list(self.stream([photographs]))  # type: ignore[list-item]
        return outputs if _is_folder(photographs) else outputs[0]

    @checked
    def stream(
        self, photographs: Iterable[Photograph], batch_size: PositiveInt = BATCH_SIZE, errors: list[str] | None = None
    ) -> Iterator[ImageCaptions]:
        """Yield the captions of photographs in order. Only one batch of photographs is in memory at a time.

        Args:
            errors: if given, photographs that cannot be read are skipped, and their errors are added to this list.

        Raises:
            UserError: a photograph cannot be read, and no `errors` are given.
        """
        sources = (find_images(str(one)).sources if _is_folder(one) else [one] for one in photographs)
        images = chain.from_iterable(sources)
        for _, [output] in caption_in_batches([self], images, batch_size, errors):
            yield output

    def pixels(self, photograph: Image.Image) -> list[Tensor]:
        """Return the pixels of a photograph for each model."""
        return [model.module.encoder.preprocessing(photograph) for model in self.models]

    def describe(
        self, pictures: Sequence[tuple[str, Image.Image]], images: Sequence[Tensor], beam_size: int | None = None
    ) -> Iterator[ImageCaptions]:
        """Yield the captions of photographs. They are generated together, or one by one if they depend on random draws,
        so that a caption does not depend on the other photographs.

        Args:
            pictures: names and photographs.
            images: pixels (I, 3, H, W) of the photographs, for each model.
            beam_size: of beam search; by default as in the decoding.
        """
        if len(pictures) > 1 and not self.is_deterministic:
            for i, picture in enumerate(pictures):
                yield from self.describe([picture], [own[i : i + 1] for own in images], beam_size)
            return
        inputs = [own.to(model.module.device) for model, own in zip(self.models, images, strict=True)]
        gpus = {images.device for images in inputs if images.device.type == "cuda"}
        with torch.random.fork_rng(gpus, enabled=self.seed is not None), plain_torch():
            if self.seed is not None:
                torch.manual_seed(self.seed)
            captions_of_images = self._ensemble.generate(inputs, beam_size)
        for (name, image), captions in zip(pictures, captions_of_images, strict=True):
            box = self._first.encoder.preprocessing.crop_box(*image.size).scaled(1 / image.width, 1 / image.height)
            yield ImageCaptions(name, image, box, tuple(_decode(self._first, caption) for caption in captions))

    def __repr__(self) -> str:
        return f"CaptioningPipeline({self.name!r})"

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write a folder, whose files are replaced, except for a README.md; see `new_folder` for errors, and
        `ModelHubMixin.save_pretrained` for the arguments."""
        with new_folder(save_directory, resume=True, advice="choose another place") as folder:
            url: str | None = super().save_pretrained(folder, **options)
        return url

    def _save_pretrained(self, save_directory: Path) -> None:
        if len(self.models) > 1:
            raise UserError(f"{self.name} is an ensemble of {len(self.models)} models; save each of them")
        if not self.models[0].metadata:
            raise UserError(f"{self.name} is a model in memory; save a checkpoint with trainer.save_checkpoint")
        save_model_folder(self.models[0], save_directory)

    def generate_model_card(self, *args: Any, **about: Any) -> ModelCard:
        """Return the model card. The arguments are those of `results.tables.model_card`; `save_pretrained` takes them
        as `model_card_kwargs`."""
        card = {**self.models[0].metadata, "encoder": self._first.encoder.describe()}
        return ModelCard(model_card(card, **about))

    @classmethod
    def from_module(cls, module: ImageCaptioner, name: str = "model", seed: int | None = 1) -> "CaptioningPipeline":
        """Return the pipeline of a model in memory, such as a trained `CaptioningModule`."""
        return cls(name, [LoadedModel(module.eval(), IN_MEMORY, {})], seed)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, revision: str | None = None, **settings: Any
    ) -> "CaptioningPipeline":
        """Load a model from a folder or the hub. The other arguments are those of `load`.

        Args:
            revision: branch, tag or commit on the hub.
        """
        name = str(pretrained_model_name_or_path)
        return load(f"{name}@{revision}" if revision else name, **settings)


@checked
def load(
    checkpoint: str | Path | Annotated[Sequence[str | Path], Field(min_length=1)] = BUNDLED,
    *,
    device: str | torch.device = "auto",
    decoding: Decoding | None = None,
    attention_mode: Literal["sample", "argmax", "expectation"] | None = None,
    seed: Seed | None = 1,
    **search: Any,
) -> CaptioningPipeline:
    """Load a trained model that captions photographs.

    Examples:
        >>> captioner = load()
        >>> output = captioner("docs/figures/skater.jpg")
        >>> output.caption
        'a skateboarder is doing a trick on a ramp'
        >>> output.maps.shape == (len(output.words), output.photograph.height, output.photograph.width)
        True
        >>> [word for word, log_p in zip(output.words, output.log_probs) if log_p < -0.1]
        ['skateboarder', 'ramp']
        >>> load(beam_size=1, max_length=3)("docs/figures/skater.jpg").words
        ('a', 'skateboarder', 'is')

    Args:
        checkpoint: a `best.ckpt` of training, a folder that `save_pretrained` wrote, the name of a bundled
            model, or of one on the hub, `owner/name`; several form an ensemble.
        device: `cpu`, `cuda`, `cuda:1`, ..., or `auto` for the GPU if there is one.
        decoding: how captions are generated; beam search by default.
        attention_mode: how hard attention selects regions: a sample, the most probable region, or the expectation; by
            default as in training.
        seed: random seed; None does not change torch's generator.
        search: settings of `BeamSearch` such as `beam_size=5`, if no decoding is given. By default, captions have no
            `<unk>`.

    Raises:
        UserError: a checkpoint is missing, damaged or not from this project, or a setting is unknown.
    """
    paths = [str(path) for path in ([checkpoint] if isinstance(checkpoint, str | Path) else checkpoint)]
    if decoding and search:
        raise UserError(f"{', '.join(search)} belong to the decoding that is given; set them there")
    known = [field.name for field in fields(BeamSearch)]
    for name in search:
        if name not in known:
            meant = [each.rpartition(".")[2] for each in MEANT.get(name, [name])]
            near = next((each for each in meant if each in known), "" if name in MEANT else name)
            raise UserError(f"load has no argument {name}{did_you_mean(near, known)}")
    chosen = decoding or BeamSearch(**{"beam_size": 3, "allow_unk": False, **search})
    attention = InferenceAttentionSettings(inference_mode=attention_mode)
    with paused_collection():
        models = load_models(paths, str(device), chosen, attention)
    chosen.in_tokens(models[0].module.vocabulary)  # raises for unknown words, and for lengths without room
    return CaptioningPipeline(" + ".join(paths), models, seed)


def _is_folder(photograph: Any) -> bool:
    return isinstance(photograph, str | Path) and os.path.isdir(photograph)


def _decode(module: ImageCaptioner, caption: CaptionOutput[Tensor]) -> CaptionOutput[np.ndarray]:
    """Return a generated caption with its words, and with its attention on the grid."""
    tokenizer, words = module.vocabulary.tokenizer, tuple(module.vocabulary.decode(caption.tokens))
    parts = () if isinstance(tokenizer, PlainTokenizer) else tokenizer.parts(words)
    rated = caption.confidence_log_probs
    return CaptionOutput(
        caption.tokens,
        caption.log_probs.numpy(),
        caption.attention.unflatten(1, module.encoder.grid).numpy(),
        caption.gates.numpy(),
        tuple(part.strip() or BLANK for part in parts) or words,
        None if rated is None else rated.numpy(),
        caption.not_sure,
        parts,
    )


def stacked(images: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Return the inputs of each model, from those of each photograph."""
    return [torch.stack(own) for own in zip(*images, strict=True)]


Opened = tuple[str, Image.Image, list[list[Tensor]]]
"""The name of a photograph, the photograph, and its pixels for the models of each pipeline."""


def caption_in_batches(
    captioners: Sequence[CaptioningPipeline],
    photographs: Iterable[Photograph],
    batch_size: int,
    errors: list[str] | None,
    threads: int = 0,
) -> Iterator[tuple[int, list[ImageCaptions]]]:
    """Yield the position of each photograph, and its captions by every pipeline.

    Args:
        errors: gets the errors of photographs that cannot be read; without it, the first is raised.
        threads: number of threads that open photographs ahead; without any, a photograph is opened when it is needed.
    """

    def open_photograph(item: Photograph) -> Opened:
        image = as_image(item)
        return name_of(item), image, [captioner.pixels(image) for captioner in captioners]

    opened = _ahead(open_photograph, photographs, threads)
    for batch in _batches(opened, batch_size, errors):
        pictures = [(name, image) for name, image, _ in batch.values()]
        inputs = zip(*(inputs for _, _, inputs in batch.values()), strict=True)  # by pipeline
        outputs = [
            captioner.describe(pictures, stacked(own)) for captioner, own in zip(captioners, inputs, strict=True)
        ]
        for number, *described in zip(batch, *outputs, strict=True):
            yield number, described


def _ahead(function: Callable[[Any], Opened], items: Iterable[Any], threads: int) -> Iterator[Callable[[], Opened]]:
    """Yield for each item a function that returns its result, which threads compute a few items ahead."""
    if not threads:
        yield from (partial(function, item) for item in items)
        return
    with ThreadPoolExecutor(threads) as pool:
        results = deque[Callable[[], Opened]]()
        for item in items:
            results.append(pool.submit(function, item).result)
            if len(results) > 2 * threads:
                yield results.popleft()
        yield from results


def _batches(
    results: Iterable[Callable[[], Opened]], batch_size: int, errors: list[str] | None
) -> Iterator[dict[int, Opened]]:
    """Yield photographs by their position, at most `batch_size` together. See `caption_in_batches`."""
    batch, num_pixels = dict[int, Opened](), 0
    for i, result in enumerate(results):
        try:
            batch[i] = result()
        except UserError as error:
            if errors is None:
                raise
            errors.append(str(error))
            continue
        num_pixels += batch[i][1].width * batch[i][1].height
        if len(batch) == batch_size or num_pixels > MAX_BATCH_PIXELS:
            yield batch
            batch, num_pixels = {}, 0
    if batch:
        yield batch
