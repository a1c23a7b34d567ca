"""Captioning pipeline: from photographs to captions and attention maps."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from PIL import Image
from pydantic import Field
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.text import Text
from torch import Tensor

from showattendtell.config.compose import to_plain
from showattendtell.config.instantiate import Config, build, find_source
from showattendtell.data.images import Photograph, as_image, find_images, name_of, open_image
from showattendtell.data.tokenizers import PlainTokenizer
from showattendtell.datamodules.datasets import View
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.inference.loading import (
    BUNDLED,
    LoadedModel,
    find_model,
    load_models,
    reading_settings,
    save_model_folder,
)
from showattendtell.models.calibration import Calibration
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.files import new_folder, sha256
from showattendtell.runtime.memory import paused_collection
from showattendtell.settings import PositiveInt, Seed, checked, is_url
from showattendtell.types import Box, CaptionOutput, Dataset, Example
from showattendtell.visualization.pages import KILOBYTES_EACH, ImageCaptions
from showattendtell.visualization.rendering import model_card

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
        seed: random seed of each batch; None does not change torch's generator.
    """

    def __init__(self, name: str, models: Sequence[LoadedModel], seed: int | None = 1):
        self.name, self.models, self.seed = name, tuple(models), seed
        self._ensemble = ImageCaptionerEnsemble(
            [model.module for model in models], self.calibration, models[0].language_models
        )

    @property
    def config(self) -> Config:
        """The configuration that the first model was trained with."""
        return self.models[0].config

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the model; None if it has none, or for an ensemble."""
        return self.models[0].calibration if len(self.models) == 1 else None

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
            photographs: one photograph, a list of them, or a folder of image files.

        Returns:
            An `ImageCaptions` for one photograph, otherwise a list of them.

        Raises:
            UserError: a photograph cannot be read.
        """
        if isinstance(photographs, list | tuple):
            return list(self.stream(photographs))
        outputs = list(self.stream([photographs]))  # type: ignore[list-item]
        return outputs if _folder(photographs) else outputs[0]

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
        images = chain.from_iterable(_folder(photograph) or [photograph] for photograph in photographs)
        for batch in _read_batches(images, as_image, batch_size, errors):
            yield from self.describe(list(batch.values()))

    def check_reads_pixels(self) -> None:
        """Raise `UserError` if a model cannot caption new photographs."""
        for model in self.models:
            model.module.encoder.check_reads_pixels()

    def describe(
        self, pictures: Sequence[tuple[str, Image.Image]], inputs: Sequence[Tensor] = ()
    ) -> Iterator[ImageCaptions]:
        """Yield the captions of photographs.

        Args:
            pictures: names and photographs.
            inputs: what each model reads, by default their pixels: stored regions (I, L, D); with
                `decoding.mirrored`, then those of their mirror images.
        """
        modules = [model.module for model in self.models]
        first = modules[0]
        if not inputs:
            self.check_reads_pixels()
            inputs = [torch.stack([module.encoder.preprocessing(image) for _, image in pictures]) for module in modules]
            if first.decoding.mirrored:
                inputs += [images.flip(-1) for images in inputs]
        inputs = [images.to(module.device) for images, module in zip(inputs, cycle(modules), strict=False)]
        gpus = {images.device for images in inputs if images.device.type == "cuda"}
        with torch.random.fork_rng(gpus, enabled=self.seed is not None), plain_torch():
            if self.seed is not None:
                torch.manual_seed(self.seed)
            captions_of_images = self._ensemble.generate(inputs)
        for (name, image), captions, regions in zip(pictures, captions_of_images, inputs[0], strict=True):
            box = first.encoder.preprocessing.crop_box(*image.size).scaled(1 / image.width, 1 / image.height)
            decoded = tuple(_decode(first, caption, regions, box) for caption in captions)
            yield ImageCaptions(name, image, first.encoder.boxes_of(regions) or box, decoded)

    def __repr__(self) -> str:
        return f"CaptioningPipeline({self.name!r})"

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write a new folder; see `new_folder` for errors, and `ModelHubMixin.save_pretrained` for the arguments."""
        with new_folder(save_directory) as folder:
            url: str | None = super().save_pretrained(folder, **options)
        return url

    def _save_pretrained(self, save_directory: Path) -> None:
        if len(self.models) > 1:
            raise UserError(f"{self.name} is an ensemble of {len(self.models)} models; save each of them")
        if not self.models[0].metadata:
            raise UserError(f"{self.name} is a model in memory; save a checkpoint with trainer.save_checkpoint")
        save_model_folder(self.models[0], save_directory)

    def generate_model_card(self, *args: Any, **about: Any) -> ModelCard:
        """Return the model card. The arguments are those of `rendering.model_card`; `save_pretrained` takes them as
        `model_card_kwargs`."""
        card = {**self.models[0].metadata, "encoder": self._first.encoder.describe()}
        return ModelCard(model_card(card, **about))

    @classmethod
    def from_module(cls, module: ImageCaptioner, name: str = "model", seed: int | None = 1) -> "CaptioningPipeline":
        """Return the pipeline of a model in memory, such as a trained `CaptioningModule`."""
        return cls(name, [LoadedModel(module.eval(), Config({}), {})], seed)

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
        ['is', 'ramp']
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
    try:
        chosen = decoding or BeamSearch(**{"beam_size": 3, "allow_unk": False, **search})
    except (TypeError, ValueError) as error:
        raise UserError(f"invalid decoding options: {error}") from None
    attention = {"inference_mode": attention_mode} if attention_mode else None
    with paused_collection():
        models = load_models(paths, str(device), chosen, attention)
    return CaptioningPipeline(" + ".join(paths), models, seed)


def _folder(photograph: Any) -> list[Photograph] | None:
    """Return the image files of a folder; None if it is not a folder."""
    is_folder = isinstance(photograph, str | Path) and Path(photograph).is_dir()
    return [*find_images([str(photograph)]).sources] if is_folder else None


def _decode(
    module: ImageCaptioner, caption: CaptionOutput[Tensor], regions: Tensor, seen: Box
) -> CaptionOutput[np.ndarray]:
    """Return a generated caption with its words, and with its attention on the grid or the boxes of an image."""
    tokenizer, words = module.vocabulary.tokenizer, tuple(module.vocabulary.decode(caption.tokens))
    parts = () if isinstance(tokenizer, PlainTokenizer) else tokenizer.parts(words)
    calibrated = caption.calibrated_log_probs
    return CaptionOutput(
        caption.tokens,
        caption.log_probs.numpy(),
        module.encoder.arrange(caption.attention.numpy(), regions, seen)[0],
        caption.gates.numpy(),
        tuple(part.strip() or BLANK for part in parts) or words,
        None if calibrated is None else calibrated.numpy(),
        caption.unsure,
        parts,
    )


def checkpoint_groups(config: Config) -> list[list[str]]:
    """Return the checkpoints of each pipeline that the configuration of a command names: those of `checkpoint`, an
    ensemble if there are several, and each of `compare` alone."""
    checkpoint, compare = config.checkpoint, config.compare
    first = [checkpoint] if isinstance(checkpoint, str) else list(checkpoint)
    return [first, *([path] for path in ([compare] if isinstance(compare, str) else compare))]


def model_names(config: Config) -> list[str]:
    """Return the names of `checkpoint_groups`: `names` of the command, or the shortest ends of their paths.

    Raises:
        UserError: `names` does not have a different name for each.
    """
    groups = checkpoint_groups(config)
    if not config.names:
        short = iter(short_names([path for group in groups for path in group]))
        return [" + ".join(islice(short, len(group))) for group in groups]
    names = list(config.names)
    if len(names) != len(groups) or len(set(names)) != len(names):
        raise UserError(f"names={','.join(names)} must have a different name for each model; models: {len(groups)}")
    return names


def load_captioners(config: Config) -> list[CaptioningPipeline]:
    """Return the pipelines of `checkpoint_groups`, see `model_names`."""
    decoding = build(config.decoding)
    captioners = []
    for name, group in zip(model_names(config), checkpoint_groups(config), strict=True):
        models = load_models(group, config.device, decoding, config.attention)
        captioners.append(CaptioningPipeline(name, models, config.seed))
    return captioners


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths, of two parts or more, that are different for different paths."""
    parts = [Path(path).parts for path in paths]
    for length in range(2, max(map(len, parts))):
        ends = [str(Path(*path[-length:])) for path in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return [str(Path(path)) for path in paths]


StoredRegions = Callable[[Sequence[int]], list[Tensor]]
"""From positions of images to their stored regions (I, L, D), for each model of a pipeline; with `decoding.mirrored`,
then those of their mirror images."""


class RateColumn(ProgressColumn):
    """Photographs per second, over the last half minute."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.1f}/s", style="progress.data.speed")


def settings_checksum(config: Config) -> str:
    """Return 16 hexadecimal digits that change with the files of the models and with each setting of a command that
    captions depend on."""
    groups = checkpoint_groups(config)
    paths = [path for group in groups for path in group]
    if config.decoding.get("language_model"):
        paths.append(config.decoding.language_model)
    hashes, sizes = [sha256(find_model(path)) for path in paths], [len(group) for group in groups]
    settings = [to_plain(config.decoding), to_plain(config.attention), config.seed]
    return hashlib.sha256(json.dumps([sizes, hashes, settings]).encode()).hexdigest()[:16]


def caption_all(
    captioners: Sequence[CaptioningPipeline],
    sources: Sequence[str],
    errors: list[str],
    stored: Sequence[StoredRegions | None] | None = None,
) -> Iterator[tuple[int, list[ImageCaptions]]]:
    """Caption files and URLs with each pipeline. Yield the index of each source, and its captions by every pipeline.

    Photographs are captioned in batches, or one by one if the captions depend on random draws, so that a caption does
    not depend on the other photographs. Those that cannot be read are skipped; their errors are added to `errors`.

    Args:
        stored: for each pipeline the regions of these photographs, if it does not read photographs.
    """
    console = Console(stderr=True)
    is_hidden = not console.is_terminal or len(sources) < 2
    columns = [*Progress.get_default_columns(), MofNCompleteColumn(), RateColumn()]
    batch_size = BATCH_SIZE if all(captioner.is_deterministic for captioner in captioners) else 1
    stored = stored or [None] * len(captioners)
    with Progress(
        *columns, console=console, transient=True, disable=is_hidden, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("captioning", total=len(sources))
        for batch in _read_batches(sources, _read_source, batch_size, errors):
            written = []
            for captioner, regions in zip(captioners, stored, strict=True):
                written.append(captioner.describe(list(batch.values()), regions(list(batch)) if regions else ()))
            for number, *outputs in zip(batch, *written, strict=True):
                progress.update(task, completed=number + 1)
                yield number, outputs


def stored_regions(
    captioner: CaptioningPipeline, dataset: Dataset, config: Config, examples: Sequence[Example]
) -> StoredRegions | None:
    """Return the regions of examples of a data set; None for a pipeline that reads photographs.

    Args:
        config: of a command.

    Raises:
        UserError: the decoding needs mirror images, and there are none.
    """
    if all(model.module.encoder.reads_pixels for model in captioner.models):
        return None
    sources = []
    for model in captioner.models:
        settings = reading_settings(model.config, dataset=config.dataset)
        source, _ = find_source(settings, dataset, model.module.encoder, config.split)
        sources.append(source)
    views: list[View] = ["plain", "mirrored"] if captioner.models[0].module.decoding.mirrored else ["plain"]
    readers = [source(examples, view) for view in views for source in sources]
    return lambda positions: [reader(positions) for reader in readers]


def _read_source(source: str) -> Image.Image:
    if not is_url(source):
        return open_image(source)
    from showattendtell.data.urls import fetch_image  # imports requests

    return fetch_image(source)


def _read_batches(
    photographs: Iterable[Any], read: Callable[[Any], Image.Image], batch_size: int, errors: list[str] | None
) -> Iterator[dict[int, tuple[str, Image.Image]]]:
    """Yield names and photographs by their position, at most `batch_size` together. Those that cannot be read are
    skipped, and their errors are added to `errors`; without it, the first error is raised."""
    batch, pixels = dict[int, tuple[str, Image.Image]](), 0
    for i, photograph in enumerate(photographs):
        try:
            image = read(photograph)
        except UserError as error:
            if errors is None:
                raise
            errors.append(str(error))
            continue
        batch[i] = (name_of(photograph), image)
        pixels += image.width * image.height
        if len(batch) == batch_size or pixels > MAX_BATCH_PIXELS:
            yield batch
            batch, pixels = {}, 0
    if batch:
        yield batch


def warn_of_size(photographs: int, how: str) -> None:
    """Print a note if a page of that many photographs will be large; `how` says how to get a smaller one."""
    megabytes = photographs * KILOBYTES_EACH / 1000
    if megabytes > 20:
        note = f"note: a page of {photographs:,} photographs has about {megabytes:.0f} MB; {how}"
        Console(stderr=True, highlight=False).print(note, style="yellow", soft_wrap=True)
