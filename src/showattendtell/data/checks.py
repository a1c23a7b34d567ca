"""Data set checks before training: duplicate images and captions, unusual caption lengths."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

from showattendtell.data.images import read_pixels
from showattendtell.errors import UserError, listed
from showattendtell.types import Dataset, Example

SHORT, LONG = 3, 30
"""Captions of fewer or of more words are told."""


def check_up(dataset: Dataset) -> list[str]:
    """Return one sentence per finding."""
    return [*_tell_doubled_images(dataset), *_tell_doubled_captions(dataset), *_tell_lengths(dataset)]


def doubled_images(examples: Iterable[Example]) -> list[list[Example]]:
    """Return groups of images with byte-identical files under different names."""
    by_size = defaultdict(list)
    for example in examples:
        path = Path(example.path)
        if path.is_file():
            by_size[path.stat().st_size].append(example)
    by_content = defaultdict(list)
    for size, alike in by_size.items():
        if len(alike) > 1:
            for example in alike:
                by_content[size, hashlib.sha256(Path(example.path).read_bytes()).digest()].append(example)
    return [alike for alike in by_content.values() if len(alike) > 1]


def _tell_doubled_images(dataset: Dataset) -> Iterator[str]:
    split_of = {example.image: name for name, split in dataset.splits.items() for example in split}
    groups = doubled_images(dataset.examples())
    leaks = [alike for alike in groups if len({split_of[example.image] for example in alike}) > 1]
    within = [alike for alike in groups if len({split_of[example.image] for example in alike}) == 1]
    if leaks:
        shown = [", ".join(f"{example.image} ({split_of[example.image]})" for example in alike) for alike in leaks]
        yield (
            f"{_photographs(leaks)} in more than one split under different names, so scores will be too high: "
            f"{listed(shown, 1)}"
        )
    if within:
        shown = [" = ".join(example.image for example in alike) for alike in within]
        yield f"{_photographs(within)} more than once in one split: {listed(shown, 1)}"


def _tell_doubled_captions(dataset: Dataset) -> Iterator[str]:
    doubled = [
        example
        for example in dataset.examples()
        if max(Counter(caption.words for caption in example.captions).values(), default=0) > 1
    ]
    if doubled:
        yield f"{len(doubled):,} images with the same caption twice: {listed([example.image for example in doubled])}"


def _tell_lengths(dataset: Dataset) -> Iterator[str]:
    lengths = [(len(caption.words), example.image) for example in dataset.examples() for caption in example.captions]
    for name, odd in (
        (f"fewer than {SHORT} words", [image for length, image in lengths if length < SHORT]),
        (f"more than {LONG} words", [image for length, image in lengths if length > LONG]),
    ):
        if odd:
            yield f"{len(odd):,} captions of {name}, of {listed(list(dict.fromkeys(odd)))}"


def _photographs(groups: Sequence[object]) -> str:
    return "1 photograph stands" if len(groups) == 1 else f"{len(groups):,} photographs stand"


SHOWN = 5
"""Maximum number of errors that are listed one by one."""


def drop_unreadable(dataset: Dataset, splits: Sequence[str]) -> Dataset:
    """Return the data set without unreadable images of the splits, which its notes list. Decodes every image."""
    examples = [example for split in splits for example in dataset.split(split)]
    console = Console(stderr=True)
    with ThreadPoolExecutor() as threads:  # decoding releases the GIL
        tried = track(threads.map(_fault, examples), "reading", len(examples), console=console, transient=True)
        faults = {example.image: fault for example, fault in zip(examples, tried, strict=True) if fault}
    if not faults:
        return dataset
    count = "1 image" if len(faults) == 1 else f"{len(faults)} images"
    reasons = "; ".join(list(faults.values())[:SHOWN])
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    note = f"{count} passed over: {reasons}{more}"
    return dataset.without(faults)._replace(notes=(*dataset.notes, note))


def _fault(example: Example) -> str | None:
    try:
        read_pixels(example.path)
    except UserError as fault:
        return str(fault)
    return None
