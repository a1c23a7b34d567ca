"""Find the files of a data set, and build it from a caption file: splits, tokenized captions, checks."""

import hashlib
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import track

from showattendtell.data.images import read_pixels
from showattendtell.data.names import Names, is_photograph, photographs, spelling
from showattendtell.data.parsing import CaptionFile
from showattendtell.data.splits import SKIP
from showattendtell.data.tokenizers import tokenize
from showattendtell.errors import UserError, listed
from showattendtell.runtime.files import expand_home
from showattendtell.types import Caption, Dataset, Example

OUTSIDE = re.compile(r"[/\\]|\w:[/\\]|\.{0,2}$|(.*[/\\])?\.\.([/\\]|$)|.*\0", re.DOTALL)
"""Image names that lead out of a folder: absolute paths, drives, `..`, and names with NUL."""


LONGEST = 1_000
"""Largest number of words of a caption; training keeps the activations of each."""


def assemble(
    name: str, file: CaptionFile, folder: Path | None, captions_per_image: int, skip_missing: bool | None = None
) -> Dataset:
    """Build a data set from the images in a caption file's splits, with tokenized captions.

    Captions beyond `captions_per_image`, as in the paper, and captions without words are dropped; notes give their
    numbers.

    Args:
        folder: of the images; None for captions without photographs, whose examples have no path.
        skip_missing: skip images without captions; None if the reader has no such setting.

    Raises:
        UserError: an image is listed twice, has no caption or a very long one, or has a path out of the folder.
    """
    split_of: dict[str, str] = {}
    for split, images in file.splits.items():
        for image in images:
            if image in split_of:
                places = f"{split_of[image]}, {split}"
                raise UserError(f"image {image} is listed more than once ({places}); keep one of its entries")
            split_of[image] = split
    too_many = f"beyond {captions_per_image} of an image"
    dropped = {"without a word": 0, too_many: 0}

    def example(image: str) -> Example:
        path = f"{file.folders[image]}/{image}" if image in file.folders else image
        if folder and OUTSIDE.match(path):
            raise UserError(f"image {path!r} is not within {folder}; name images by their path in that folder")
        captions = list[Caption]()
        for sentence in file.captions.get(image, ()):
            words = tokenize(sentence)
            if len(words) > LONGEST:
                raise UserError(f"image {image} has a caption of {len(words):,} words; shorten it to {LONGEST:,}")
            if not words:
                dropped["without a word"] += 1
            elif len(captions) == captions_per_image:
                dropped[too_many] += 1
            else:
                captions.append(Caption(words, (), sentence.strip()))
        return Example(image, f"{folder}/{path}" if folder else "", tuple(captions))

    dataset = Dataset(name, {split: tuple(map(example, images)) for split, images in file.splits.items()})
    notes = [*file.notes, *(f"dropped captions {reason}: {count:,}" for reason, count in dropped.items() if count)]
    uncaptioned = [example.image for example in dataset.examples() if not example.captions]
    if uncaptioned:
        counted = f"images without a caption: {len(uncaptioned):,} of {len(split_of):,} ({listed(uncaptioned)})"
        if not skip_missing:
            hint = "remove them from the splits" if skip_missing is None else SKIP
            raise UserError(f"{counted}; add captions, or {hint}")
        notes.append(f"skipped {counted}")
    return dataset.without(uncaptioned)._replace(notes=tuple(notes))


def map_examples(dataset: Dataset, change: Callable[[Example], Example]) -> Dataset:
    """Return the data set with every example replaced by `change(example)`."""
    return dataset._replace(splits={split: tuple(map(change, part)) for split, part in dataset.splits.items()})


def map_captions(dataset: Dataset, change: Callable[[Example, Caption], Caption]) -> Dataset:
    """Return the data set with every caption replaced by `change(its example, the caption)`."""
    return map_examples(dataset, lambda e: e._replace(captions=tuple(change(e, caption) for caption in e.captions)))


def find_data_problems(dataset: Dataset) -> list[str]:
    """Return warnings, one sentence each: duplicate images, images with a caption twice, captions of unusual length."""
    split_of = {example.image: split for split, examples in dataset.splits.items() for example in examples}
    found = defaultdict[str, list[str]](list)  # names of images by problem
    for names in _identical_images(dataset.examples()):
        if len({split_of[name] for name in names}) > 1:
            leak = " = ".join(f"{name} ({split_of[name]})" for name in names)
            found["photographs in more than one split under different names, which make scores too high"].append(leak)
        else:
            found["photographs more than once in one split"].append(" = ".join(names))
    for image, _, captions, _ in dataset.examples():
        lengths = [len(caption.words) for caption in captions]
        if len({caption.words for caption in captions}) < len(captions):
            found["images with the same caption twice"].append(image)
        if min(lengths, default=3) < 3:
            found["images with a caption of fewer than 3 words"].append(image)
        if max(lengths, default=0) > 30:
            found["images with a caption of more than 30 words"].append(image)
    return [f"{problem}: {len(images):,} ({listed(images)})" for problem, images in found.items()]


def _identical_images(examples: Sequence[Example]) -> list[list[str]]:
    """Return groups of images whose files have the same content; only files of the same size are read."""
    by_size, by_content = defaultdict(list), defaultdict(list)
    for example in examples:
        if os.path.isfile(example.path):
            by_size[os.path.getsize(example.path)].append(example)
    for same_size in by_size.values():
        for example in same_size if len(same_size) > 1 else ():
            by_content[hashlib.sha256(Path(example.path).read_bytes()).digest()].append(example.image)
    return [names for names in by_content.values() if len(names) > 1]


def drop_unreadable(dataset: Dataset, splits: Sequence[str]) -> Dataset:
    """Decode every image of the splits, and return the data set without the unreadable ones, which its notes list."""

    def reading_error(example: Example) -> str:
        try:
            read_pixels(example.path)
        except UserError as error:
            return str(error)
        return ""

    examples = [example for split in splits for example in dataset.split(split)]
    with ThreadPoolExecutor() as threads:  # decoding releases the GIL
        results = threads.map(reading_error, examples)
        shown = track(results, "reading", len(examples), console=Console(stderr=True), transient=True)
        errors = {example.image: error for example, error in zip(examples, shown, strict=True) if error}
    if not errors:
        return dataset
    note = f"images skipped: {len(errors):,} ({listed([*errors.values()], 5)})"
    return dataset.without(errors)._replace(notes=(*dataset.notes, note))


def open_folder(root: str, holds: str, download: str = "") -> Path:
    """Return the folder of a data set.

    Args:
        root: its path.
        holds: the content, for the error message.
        download: its name in the command `download`, if it is published.

    Raises:
        UserError: if it is not a folder.
    """
    folder = expand_home(root)
    if not folder.is_dir():
        error = "is a file, not a folder" if folder.exists() else "does not exist"
        hint = f", or fetch it with showattendtell download dataset={download} dataset.root=DIR" if download else ""
        raise UserError(f"the folder {root} {error}; set dataset.root to the folder that holds {holds}{hint}")
    return folder


def look_in(folders: Sequence[Path], name: str) -> Path:
    """Return the first path of a name that exists, in the folders or relative to the working directory; if none does,
    that in the first folder."""
    paths = [*(folder / name for folder in folders), expand_home(name)]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def check_images(dataset: Dataset, skip_unreadable: bool, root: Path, absent: Collection[str] = ()) -> Dataset:
    """Return the data set without the images that are missing on disk.

    Args:
        skip_unreadable: allow missing images.
        root: a folder in which images that are not at their path are searched, also by other spellings of their names.
        absent: images that the distribution lacks; they may be missing in any case.

    Raises:
        UserError: an image is missing that may not be, or all are missing.
    """
    examples = dataset.examples()
    existing = set[str]()
    for folder in {os.path.dirname(example.path) for example in examples}:
        # listing each once is faster than looking for every file
        with suppress(OSError), os.scandir(folder) as entries:
            existing |= {entry.path for entry in entries if entry.is_file()}
    # the listing may spell a name differently, for example in case
    missing = [e for e in examples if e.path not in existing and not os.path.isfile(e.path)]
    if not missing:
        return dataset
    on_disk = {*filter(is_photograph, existing), *photographs(root)} - {example.path for example in examples}
    found = _find_elsewhere(examples, missing, on_disk)
    lost = [e for e in missing if e.image not in found]
    if len(lost) == len(examples):
        hint = f"{root} has no photographs; add them, or set dataset.images to their folder"
        if on_disk:
            others = listed(sorted(os.path.relpath(path, root) for path in on_disk))
            hint = f"{root} has {len(on_disk):,} photographs of other names ({others}); give them the same names"
        raise UserError(f"none of the {len(lost):,} images are on disk, the first is {lost[0].path}; {hint}")
    unexpected = [example.path for example in lost if example.image not in absent]
    if unexpected and not skip_unreadable:
        raise UserError(
            f"images captioned but not on disk: {len(unexpected):,}, the first is {unexpected[0]}; add them, or "
            "skip them with dataset.skip_unreadable=true"
        )
    notes = [_describe_moves(found, root)] if found else []
    names = [example.image for example in lost]
    if names:
        notes.append(f"images captioned but not on disk, which are skipped: {len(names):,} ({listed(names, 5)})")
    moved = map_examples(dataset, lambda example: example._replace(path=found.get(example.image, example.path)))
    return moved.without(names)._replace(notes=(*dataset.notes, *notes))


def _find_elsewhere(examples: Sequence[Example], missing: Sequence[Example], on_disk: Iterable[str]) -> dict[str, str]:
    """Return the path of each missing image that one photograph fits, by its name."""
    stems = Counter(spelling(example.path)[-1] for example in examples)
    known, found, is_partial = Names(on_disk), dict[str, str](), len(missing) < len(examples)
    for example in missing:
        match = known.find(example.path)
        # an image of another folder may have the same name
        is_other = stems[spelling(example.path)[-1]] > 1 or (is_partial and "/" in example.image)
        if match and not (is_other and match[1] == 1):
            found[example.image] = match[0]
    claims = Counter(found.values())
    return {image: path for image, path in found.items() if claims[path] == 1}


def _describe_moves(found: Mapping[str, str], root: Path) -> str:
    """Return a note on images that are not at their paths."""
    folder = os.path.relpath(os.path.commonpath(map(os.path.dirname, found.values())), root)
    setting = "" if folder == "." else f" ({shlex.quote(f'dataset.images={folder}')})"
    return f"photographs found in {root / folder}: {len(found):,}{setting}"
