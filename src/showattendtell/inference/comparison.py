"""Captions of photographs by several models, for the commands that show them."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from showattendtell.config.compose import with_overrides
from showattendtell.config.instantiate import build
from showattendtell.config.validation import raise_errors, validate
from showattendtell.data.images import open_image
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import load_models
from showattendtell.inference.pipeline import CaptioningPipeline, ImageCaptions
from showattendtell.types import Example
from showattendtell.visualization.pages import KILOBYTES_EACH

LARGE = 20
"""Size of a page, in megabytes, from which on it is reported."""


def load_captioners(config: DictConfig) -> list[CaptioningPipeline]:
    """Return a pipeline for a command's `checkpoint`, an ensemble if it is a list, and one for each of `compare`."""
    groups = [_listed(config.checkpoint), *([path] for path in _listed(config.compare))]
    paths = [path for group in groups for path in group]
    names, decoding = dict(zip(paths, short_names(paths), strict=True)), build(config.decoding)
    return [
        CaptioningPipeline(
            " + ".join(names[path] for path in group),
            load_models(group, config.device, decoding, config.attention),
            config.seed,
        )
        for group in groups
    ]


def _listed(setting: str | Sequence[str]) -> list[str]:
    return [setting] if isinstance(setting, str) else list(setting)


def resolve_dataset(trained: DictConfig, config: DictConfig) -> DictConfig:
    """Return the settings of the training data set, overridden by a command's `dataset`."""
    settings = with_overrides(trained, dataset=config.dataset)
    raise_errors(validate(settings))
    return settings.dataset


def evenly_spaced(examples: Sequence[Example], number: int | None) -> list[Example]:
    """Return `number` of the examples at equal distances; all of them if there are fewer or `number` is None."""
    number = min(number or len(examples), len(examples))
    return [examples[place * len(examples) // number] for place in range(number)]


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of the paths, with a folder at least, that differ from each other."""
    parts = [Path(path).parts for path in paths]
    for length in range(2, max(map(len, parts))):
        ends = [str(Path(*path[-length:])) for path in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return [str(Path(path)) for path in paths]


def caption_all(
    captioners: Sequence[CaptioningPipeline], files: Sequence[Path], faults: list[str]
) -> Iterator[tuple[int, list[ImageCaptions]]]:
    """Yield the number of each photograph's file with the captions of every model.

    Files that cannot be read are skipped; their errors are added to `faults`.
    """
    for number, file in enumerate(with_progress(files)):
        try:
            photograph = open_image(file)
        except UserError as fault:
            faults.append(str(fault))
            continue
        yield number, [captioner(photograph) for captioner in captioners]


def with_progress(files: Sequence[Path]) -> Iterable[Path]:
    """Iterate with a progress bar if there are several files and stderr is a terminal."""
    console = Console(stderr=True)
    silent = not console.is_terminal or len(files) < 2
    with Progress(console=console, transient=True, disable=silent, redirect_stdout=sys.stdout.isatty()) as progress:
        yield from progress.track(files, description="captioning")


def warn_of_size(photographs: int, how: str) -> None:
    """Print the size of a page that will be large, and how to get a smaller one."""
    megabytes = photographs * KILOBYTES_EACH / 1000
    if megabytes > LARGE:
        note = f"note: a page of {photographs:,} photographs has about {megabytes:.0f} MB; {how}"
        Console(stderr=True, highlight=False).print(note, style="yellow", soft_wrap=True)
