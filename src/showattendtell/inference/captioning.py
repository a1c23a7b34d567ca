"""Captioning by the commands: the models that a configuration names, and the captions of files, URLs and data sets."""

import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from PIL import Image
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.text import Text
from torch import Tensor

from showattendtell.config.compose import to_plain
from showattendtell.config.instantiate import Config, build, find_source
from showattendtell.data.images import open_image
from showattendtell.datamodules.datasets import View
from showattendtell.errors import UserError
from showattendtell.inference.loading import (
    find_model,
    load_models,
    reading_settings,
)
from showattendtell.inference.pipeline import (
    BATCH_SIZE,
    CaptioningPipeline,
    open_photograph,
    photograph_batches,
    stacked,
)
from showattendtell.runtime.distributed import num_readers
from showattendtell.runtime.files import sha256
from showattendtell.settings import is_url
from showattendtell.types import Dataset, Example
from showattendtell.visualization.pages import KILOBYTES_EACH, ImageCaptions

GPU_BATCH_SIZE = 64
"""Default batch size in photographs on a GPU."""

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    pairs = list(zip(captioners, stored or [None] * len(captioners), strict=True))
    readers = [captioner for captioner, regions in pairs if regions is None]
    for captioner in readers:
        captioner.check_reads_pixels()
    on_gpu = any(captioner.device.type == "cuda" for captioner in captioners)
    batch_size = GPU_BATCH_SIZE if on_gpu else BATCH_SIZE
    if not all(captioner.is_deterministic for captioner in captioners):
        batch_size = 1
    opened = _in_threads(partial(open_photograph, _read_source, readers), sources, num_readers() if on_gpu else 0)
    with Progress(
        *columns, console=console, transient=True, disable=is_hidden, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("captioning", total=len(sources))
        for batch in photograph_batches(opened, batch_size, errors):
            pictures = [(name, photograph) for name, photograph, _ in batch.values()]
            pixels = zip(*(pixels for *_, pixels in batch.values()), strict=True)  # of each reader
            written = []
            for captioner, regions in pairs:
                images = stacked(next(pixels)) if regions is None else regions(list(batch))
                written.append(captioner.describe(pictures, images))
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


def warn_of_size(photographs: int, how: str) -> None:
    """Print a note if a page of that many photographs will be large; `how` says how to get a smaller one."""
    megabytes = photographs * KILOBYTES_EACH / 1000
    if megabytes > 20:
        note = f"note: a page of {photographs:,} photographs has about {megabytes:.0f} MB; {how}"
        Console(stderr=True, highlight=False).print(note, style="yellow", soft_wrap=True)
