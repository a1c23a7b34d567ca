"""What a user should know of a data set before training on it: doubled images and captions, odd lengths."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from showattendtell.errors import listed
from showattendtell.records import Dataset, Example

SHORT, LONG = 3, 30
"""Captions of fewer or of more words are told."""


def check_up(dataset: Dataset) -> list[str]:
    """A sentence for everything odd."""
    return [*_tell_doubled_images(dataset), *_tell_doubled_captions(dataset), *_tell_lengths(dataset)]


def doubled_images(examples: Iterable[Example]) -> list[list[Example]]:
    """Groups of images whose files are the same to the byte, under different names."""
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
