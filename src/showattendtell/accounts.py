"""What models say of photographs, each on its own: what the commands that show it share."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from showattendtell.checkpoint import restore_together
from showattendtell.config.build import build, settled
from showattendtell.config.check import find_faults, raise_all
from showattendtell.data.images import open_image
from showattendtell.describing import Description, PhotoCaptioner
from showattendtell.errors import UserError
from showattendtell.records import Example
from showattendtell.report.pages import KILOBYTES_EACH

LARGE = 20
"""Megabytes of a page that are told before it is made."""


class Told(NamedTuple):
    """The number of a photograph's file among all, and what each model says of it."""

    number: int
    descriptions: list[Description]


def restore_captioners(config: DictConfig) -> list[PhotoCaptioner]:
    """What a command's `checkpoint` names, and then each of `compare`, which writes for itself."""
    groups = [_listed(config.checkpoint), *([path] for path in _listed(config.compare))]
    paths = [path for group in groups for path in group]
    names, decoding = dict(zip(paths, short_names(paths), strict=True)), build(config.decoding)
    return [
        PhotoCaptioner(
            " + ".join(names[path] for path in group),
            restore_together(group, config.device, decoding, config.attention),
            config.seed,
        )
        for group in groups
    ]


def _listed(setting: str | Sequence[str]) -> list[str]:
    return [setting] if isinstance(setting, str) else list(setting)


def settle_dataset(trained: DictConfig, config: DictConfig) -> DictConfig:
    """The data set of training as its settings, but for what a command's `dataset` says otherwise."""
    settings = settled(trained, dataset=config.dataset)
    raise_all(find_faults(settings))
    return settings.dataset


def spread(examples: Sequence[Example], number: int | None) -> list[Example]:
    """So many of the examples, at equal distances; all where there are no more, or no number is given."""
    number = min(number or len(examples), len(examples))
    return [examples[place * len(examples) // number] for place in range(number)]


def short_names(paths: Sequence[str]) -> list[str]:
    """The ends of the paths, of at least a folder and the file, that are as long as it takes to tell them apart."""
    parts = [Path(path).parts for path in paths]
    for length in range(2, max(map(len, parts))):
        ends = [str(Path(*path[-length:])) for path in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return [str(Path(path)) for path in paths]


def tell_all(captioners: Sequence[PhotoCaptioner], files: Sequence[Path], faults: list[str]) -> Iterator[Told]:
    """Of each photograph in turn; a file that cannot be read is passed over, and its fault added to `faults`."""
    for number, file in enumerate(watched(files)):
        try:
            photograph = open_image(file)
        except UserError as fault:
            faults.append(str(fault))
            continue
        yield Told(number, [captioner(photograph) for captioner in captioners])


def watched(files: Sequence[Path]) -> Iterable[Path]:
    """With a progress bar on a terminal where there are several; what is printed meanwhile goes where it would."""
    console = Console(stderr=True)
    silent = not console.is_terminal or len(files) < 2
    with Progress(console=console, transient=True, disable=silent, redirect_stdout=sys.stdout.isatty()) as progress:
        yield from progress.track(files, description="captioning")


def warn_of_size(photographs: int, how: str) -> None:
    """Tell of a large page before it is made, and how to have a smaller one."""
    megabytes = photographs * KILOBYTES_EACH / 1000
    if megabytes > LARGE:
        note = f"note: a page of {photographs:,} photographs has about {megabytes:.0f} MB; {how}"
        Console(stderr=True, highlight=False).print(note, style="yellow", soft_wrap=True)
