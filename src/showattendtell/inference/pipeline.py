"""Captioning pipeline: from photographs to captions and attention maps."""

import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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
from showattendtell.inference.loading import BUNDLED, LoadedModel, load_models, reading_settings, save_model_folder
from showattendtell.models.calibration import Calibration
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.models.pretrained import state_hash
from showattendtell.runtime.distributed import num_readers
from showattendtell.runtime.files import new_folder
from showattendtell.runtime.memory import paused_collection
from showattendtell.settings import PositiveInt, Seed, checked, is_url
from showattendtell.types import CaptionOutput, Dataset, Example
from showattendtell.visualization.pages import KILOBYTES_EACH, ImageCaptions
from showattendtell.visualization.rendering import model_card

BATCH_SIZE, GPU_BATCH_SIZE = 8, 64
"""Default batch sizes in photographs."""

BLANK = "␣"
"""The word of a token that adds only a space to the caption."""

Item = TypeVar("Item")
Result = TypeVar("Result")

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
            photographs: one photograph, a list of them, or a folder of image files.

        Returns:
            An `ImageCaptions` for one photograph, otherwise a list of them.

        Raises:
            UserError: a photograph cannot be read.
        """
        batch = photographs if isinstance(photographs, list | tuple) else _folder(photographs)
        if batch is not None:
            return list(self.stream(batch))
        return next(self.stream([photographs]))  # type: ignore[list-item]

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
        while batch := list(islice(images, batch_size)):
            pictures = []
            for photograph in batch:
                try:
                    pictures.append((name_of(photograph), as_image(photograph)))
                except UserError as error:
                    if errors is None:
                        raise
                    errors.append(str(error))
            if pictures:
                self.check_reads_pixels()
                yield from self.describe(pictures, stacked(self.pixels(image) for _, image in pictures))

    def check_reads_pixels(self) -> None:
        """Raise `UserError` if a model cannot caption new photographs."""
        for model in self.models:
            model.module.encoder.check_reads_pixels()

    def pixels(self, photograph: Image.Image) -> list[Tensor]:
        """Return the pixels of a photograph for each model; with `decoding.mirrored`, then mirrored."""
        pixels = [model.module.encoder.preprocessing(photograph) for model in self.models]
        return [*pixels, *(plain.flip(-1) for plain in pixels)] if self._first.decoding.mirrored else pixels

    def describe(
        self, pictures: Sequence[tuple[str, Image.Image]], images: Sequence[Tensor]
    ) -> Iterator[ImageCaptions]:
        """Yield the captions of photographs.

        Args:
            pictures: names and photographs.
            images: pixels (I, 3, H, W) or regions (I, L, D) of the photographs, for each model; with
                `decoding.mirrored`, then those of their mirror images.
        """
        models = self.models * (1 + self._first.decoding.mirrored)
        inputs = [own.to(model.module.device) for model, own in zip(models, images, strict=True)]
        gpus = {images.device for images in inputs if images.device.type == "cuda"}
        with torch.random.fork_rng(gpus, enabled=self.seed is not None), plain_torch():
            if self.seed is not None:
                torch.manual_seed(self.seed)
            captions_of_images = self._ensemble.generate(inputs)
        first, vocabulary = self._first.encoder, self._first.vocabulary
        is_plain = isinstance(vocabulary.tokenizer, PlainTokenizer)
        for (name, image), captions, regions in zip(pictures, captions_of_images, inputs[0], strict=True):
            box = first.preprocessing.crop_box(*image.size).scaled(1 / image.width, 1 / image.height)
            decoded = []
            for caption in captions:
                words = tuple(vocabulary.decode(caption.tokens))
                parts = () if is_plain else vocabulary.tokenizer.parts(words)
                output = CaptionOutput(
                    caption.tokens,
                    caption.log_probs.numpy(),
                    first.arrange(caption.attention.numpy(), regions, box)[0],
                    caption.gates.numpy(),
                    tuple(part.strip() or BLANK for part in parts) or words,
                    None if caption.calibrated_log_probs is None else caption.calibrated_log_probs.numpy(),
                    caption.unsure,
                    parts,
                )
                decoded.append(output)
            yield ImageCaptions(name, image, first.boxes_of(regions) or box, tuple(decoded))

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


def checkpoint_groups(config: Config) -> list[list[str]]:
    """Return the checkpoints of each pipeline that the configuration of a command names: those of `checkpoint`, an
    ensemble if there are several, and each of `compare` alone."""
    checkpoint, compare = (
        [setting] if isinstance(setting, str) else list(setting) for setting in (config.checkpoint, config.compare)
    )
    return [checkpoint, *([path] for path in compare)]


def model_names(config: Config) -> list[str]:
    """Return the names of `checkpoint_groups`: `names` of the command, or the shortest ends of their paths.

    Raises:
        UserError: `names` does not have a different name for each.
    """
    groups = checkpoint_groups(config)
    paths = [path for group in groups for path in group]
    short = dict(zip(paths, short_names(paths), strict=True))
    names = config.names or [" + ".join(short[path] for path in group) for group in groups]
    if len(names) != len(groups) or (config.names and len(set(names)) != len(names)):
        raise UserError(f"names={','.join(names)} must have a different name for each model; models: {len(groups)}")
    return list(names)


def load_captioners(config: Config) -> list[CaptioningPipeline]:
    """Return the pipelines of `checkpoint_groups`, see `model_names`."""
    decoding = build(config.decoding)
    return [
        CaptioningPipeline(name, load_models(group, config.device, decoding, config.attention), config.seed)
        for name, group in zip(model_names(config), checkpoint_groups(config), strict=True)
    ]


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths, of two parts or more, that are different for different paths."""
    parts = [Path(path).parts for path in paths]
    for length in range(2, max(map(len, parts))):
        ends = [str(Path(*path[-length:])) for path in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return [str(Path(path)) for path in paths]


def stacked(images: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Return the inputs of each model, from those of each photograph."""
    return [torch.stack(own) for own in zip(*images, strict=True)]


StoredRegions = Callable[[Sequence[int]], list[Tensor]]
"""From positions of images to their stored regions (I, L, D), for each model of a pipeline; with `decoding.mirrored`,
then those of their mirror images."""


class RateColumn(ProgressColumn):
    """Photographs per second, over the last half minute."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.1f}/s", style="progress.data.speed")


def settings_checksum(captioners: Sequence[CaptioningPipeline], config: Config) -> str:
    """Return 16 hexadecimal digits that change with the weights of the models and with each setting of a command that
    captions depend on."""
    models = [model for captioner in captioners for model in captioner.models]
    states = [state_hash(model.module.state_dict()) for model in models]
    states += [state_hash(model.calibration.state_dict()) for model in models if model.calibration]
    states += [
        state_hash(language_model.captioner.state_dict())
        for model in models
        for language_model in model.language_models
    ]
    settings = [to_plain(config[name]) for name in ("decoding", "attention")] + [config.seed]
    sizes = [len(captioner.models) for captioner in captioners]
    return hashlib.sha256(json.dumps([sizes, states, settings]).encode()).hexdigest()[:16]


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
    pairs = list(zip(captioners, stored or [None] * len(captioners), strict=True))
    readers = [captioner for captioner, regions in pairs if regions is None]
    for captioner in readers:
        captioner.check_reads_pixels()
    on_gpu = any(captioner.device.type == "cuda" for captioner in captioners)
    batch_size = GPU_BATCH_SIZE if on_gpu else BATCH_SIZE
    if not all(captioner.is_deterministic for captioner in captioners):
        batch_size = 1
    opened = _in_threads(partial(_open, readers), sources, num_readers() if on_gpu else 0)
    with Progress(
        *columns, console=console, transient=True, disable=is_hidden, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("captioning", total=len(sources))
        for batch in _batches(opened, batch_size, errors):
            pictures = [(name_of(photograph), photograph) for photograph, _ in batch.values()]
            pixels = zip(*(pixels for _, pixels in batch.values()), strict=True)  # of each reader
            written = []
            for captioner, regions in pairs:
                images = stacked(next(pixels)) if regions is None else regions(list(batch))
                written.append(list(captioner.describe(pictures, images)))
            outputs = zip(*written, strict=True)
            for number, of_each in zip(batch, outputs, strict=True):
                progress.update(task, completed=number + 1)
                yield number, list(of_each)


def _fetch_image(url: str) -> Image.Image:
    from showattendtell.data.urls import fetch_image  # imports requests, which a photograph on disk does not need

    return fetch_image(url)


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


Opened = tuple[Image.Image, list[list[Tensor]]]
"""A photograph, and its pixels for each model of each pipeline that reads photographs."""


def _open(readers: Sequence[CaptioningPipeline], place: str) -> Opened | UserError:
    try:
        photograph = _fetch_image(place) if is_url(place) else open_image(place)
        return photograph, [reader.pixels(photograph) for reader in readers]
    except UserError as error:
        return error


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Map a function, a few items ahead; without threads, when an item is requested."""
    if not threads:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        ahead = deque[Future[Result]]()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _batches(opened: Iterable[Opened | UserError], batch_size: int, errors: list[str]) -> Iterator[dict[int, Opened]]:
    """Yield photographs by their position, at most `batch_size` together."""
    batch, pixels = dict[int, Opened](), 0
    for i, photograph in enumerate(opened):
        if isinstance(photograph, UserError):
            errors.append(str(photograph))
            continue
        batch[i] = photograph
        pixels += photograph[0].width * photograph[0].height
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
