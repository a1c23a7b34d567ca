"""Find the files of a data set, and build it from a caption file: splits, tokenized captions, checks."""

import hashlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path, PurePath

from rich.console import Console
from rich.progress import track

from showattendtell.errors import UserError, listed
from showattendtell.images.names import Names, inside, photographs, spelling
from showattendtell.images.reading import read_pixels
from showattendtell.readers.formats import find_caption_files, read_all
from showattendtell.runtime.files import expand_home
from showattendtell.settings import Places
from showattendtell.text.parsing import SPLIT_NAMES, CaptionFile, add_splits, read_list, split_of_name
from showattendtell.text.tokenizers import Tokenizer, tokenize
from showattendtell.types import Caption, Dataset, Example

SKIP = "skip them with dataset.skip_missing=true"
"""How errors about missing captions and images end if the data set has the setting."""

LONGEST = 1_000
"""Largest number of words of a caption; training keeps the activations of each."""


def split_by_hash(images: Iterable[str], shares: Mapping[str, float]) -> dict[str, str]:
    """Return the split of each image, by a hash of its name.

    Args:
        shares: about the fraction of the images for each split except `train`, which gets the rest.

    Raises:
        UserError: no image is left for training, or there are fewer images than splits.
    """
    if sum(shares.values()) >= 1:
        fractions = " and ".join(f"dataset.{split}={share}" for split, share in shares.items())
        raise UserError(f"{fractions} leave no images to train on; their sum must be below 1")
    bounds, names = list(accumulate(shares.values())), [*shares, "train"]
    split_of = {image: names[bisect_right(bounds, hash_fraction(image))] for image in images}
    for split in ("train", *filter(shares.get, shares)):
        if split in split_of.values():
            continue
        [(largest, size)] = Counter(split_of.values()).most_common(1) or [("", 0)]
        if size < 2:
            raise UserError(f"there are fewer images than splits, so none is left for {split}; add images")
        # of few images none may have such a hash
        split_of[min((image for image in split_of if split_of[image] == largest), key=hash_fraction)] = split
    return split_of


def hash_fraction(image: str) -> float:
    """Return a number in [0, 1) for a name, uniformly distributed over names."""
    # the first 53 bits of the SHA-256, which a float holds exactly
    return (int.from_bytes(hashlib.sha256(image.encode()).digest()[:8]) >> 11) / 2**53


def join_restval(file: CaptionFile) -> CaptionFile:
    """Return the file with the images of `restval` in `train`, after the others."""
    added = {image: "train" for image, split in file.split_of.items() if split == "restval"}
    others = {image: split for image, split in file.split_of.items() if image not in added}
    return file._replace(split_of=others | added)


def with_splits(
    file: CaptionFile, folders: Iterable[Path], shares: Mapping[str, float], skip_missing: bool = False
) -> CaptionFile:
    """Return the file with its own splits, or else those of lists, of folders such as `train`, or of a hash.

    `restval` joins `train`. If there are no validation images, a hash takes some of the training images. Notes say
    what was chosen.

    Args:
        folders: that may hold lists.
        shares: fractions of the images for `val` and `test`.
        skip_missing: allow images without captions in lists.
    """
    if not file.split_of and (lists := next(filter(find_lists, folders), None)):
        file = with_lists(file, lists, skip_missing)
    file = join_restval(file)
    split_of, notes = dict(file.split_of), list(file.notes)
    if not split_of and (split_of := _splits_of_folders(file.captions)):
        notes.append("the folders of the images are the splits")
    elif not split_of:
        split_of = split_by_hash(file.captions, shares)
        notes.append("no splits are given, so a hash of the images' names chooses them")
    train = [image for image, split in split_of.items() if split == "train"]
    if "val" not in split_of.values() and len(train) > 1 and shares["val"]:
        split_of |= split_by_hash(train, {"val": shares["val"]})
        notes.append("there is no validation split, so a hash of the names takes some of the training images")
    return file._replace(split_of=split_of, notes=tuple(notes))


def _splits_of_folders(images: Iterable[str]) -> dict[str, str]:
    """Return the split of each image that its folders name; empty if they name fewer than two splits."""
    split_of = {image: next(filter(None, map(split_of_name, PurePath(image).parts[-2::-1])), "") for image in images}
    if len({*split_of.values()} - {""}) < 2:
        return {}
    for image, split in split_of.items():
        if not split:
            raise UserError(f"the folder of image {image} names no split, others do; set dataset.splits to lists")
    return split_of


def find_lists(folder: Path) -> dict[str, Path]:
    """Return the list of each split in a folder: `train.txt`, `Val.txt`, `dev.txt` and so on."""
    lists: dict[str, Path] = {}
    for path in sorted(folder.glob("*.[tT][xX][tT]")):
        if split := split_of_name(path.stem):
            if split in lists:
                raise UserError(f"{lists[split]} and {path.name} are both lists of {split}; remove one")
            lists[split] = path
    return {split: lists[split] for split in SPLIT_NAMES if split in lists}


def with_lists(file: CaptionFile, folder: Path, skip_missing: bool) -> CaptionFile:
    """Return the file with the splits of the lists in a folder, and a note about images that are in no list."""
    lists = find_lists(folder)
    if not lists:
        raise UserError(f"{folder} has no lists train.txt, val.txt and test.txt; add them, or leave dataset.splits out")
    known, split_of = Names(file.captions), dict[str, str]()
    for split, path in lists.items():
        images = [known.find_name(image) for image in read_list(path)]
        unknown = [image for image in images if image not in file.captions]
        if unknown and not skip_missing:
            raise UserError(
                f"{path} names images without captions: {len(unknown):,} ({listed(unknown)}); add captions, or {SKIP}"
            )
        add_splits(split_of, images, split)
    left_out = len(file.captions.keys() - split_of.keys())
    notes = (f"images with captions that no list names are left out: {left_out:,}",) if left_out else ()
    return file._replace(split_of=split_of, notes=(*file.notes, *notes))


def assemble(
    name: str, file: CaptionFile, folder: Path, captions_per_image: int, skip_missing: bool | None = None
) -> Dataset:
    """Build a data set from the images in a caption file's splits, with tokenized captions.

    Captions beyond `captions_per_image`, as in the paper, and captions without words are dropped; notes give their
    numbers.

    Args:
        folder: of the images.
        skip_missing: skip images without captions; None if the reader has no such setting.

    Raises:
        UserError: an image has no caption or a very long one.
    """
    dropped = Counter[str]()

    def example(image: str) -> Example:
        path = inside(f"{file.folders[image]}/{image}" if image in file.folders else image)
        captions = list[Caption]()
        for sentence in file.captions.get(image, ()):
            words = tokenize(sentence)
            if len(words) > LONGEST:
                raise UserError(f"image {image} has a caption of {len(words):,} words; shorten it to {LONGEST:,}")
            if not words:
                dropped["without a word"] += 1
            elif len(captions) == captions_per_image:
                dropped[f"beyond {captions_per_image} of an image"] += 1
            else:
                captions.append(Caption(words, (), sentence.strip()))
        return Example(image, f"{folder}/{path}", tuple(captions))

    splits: dict[str, list[Example]] = {split: [] for split in SPLIT_NAMES if split in file.split_of.values()}
    for image, split in file.split_of.items():
        splits[split].append(example(image))
    dataset = Dataset(name, {split: tuple(examples) for split, examples in splits.items()})
    notes = [*file.notes, *(f"dropped captions {reason}: {dropped[reason]:,}" for reason in sorted(dropped)[::-1])]
    uncaptioned = [example.image for example in dataset.examples() if not example.captions]
    if uncaptioned:
        counted = f"images without a caption: {len(uncaptioned):,} of {len(file.split_of):,} ({listed(uncaptioned)})"
        if not skip_missing:
            hint = "remove them from the splits" if skip_missing is None else SKIP
            raise UserError(f"{counted}; add captions, or {hint}")
        notes.append(f"skipped {counted}")
    return dataset.without(uncaptioned)._replace(notes=tuple(notes))


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


def look_in(folders: Sequence[Path], name: str) -> Path:
    """Return the first path of a name that exists, in the folders or relative to the working directory; if none does,
    that in the first folder."""
    paths = [*(folder / name for folder in folders), expand_home(name)]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def find_image_folder(root: Path, given: str | None, usual: Iterable[str]) -> Path:
    """Return the folder of the images: a given one, searched in `root` first; or the first of the usual names that
    exists in `root`, or `root`. Raise `UserError` if there is no such folder."""
    folder = look_in([root], given or next((name for name in usual if (root / name).is_dir()), "."))
    if not folder.is_dir():
        raise UserError(f"there is no folder {given} in {root}; set dataset.images to the folder of the images")
    return folder


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
    missing = [example for example in examples if not os.path.isfile(example.path)]
    if not missing:
        return dataset
    folders = {str(root), *(os.path.dirname(example.path) for example in examples)}
    on_disk = {path for folder in folders for path in photographs(folder)} - {example.path for example in examples}
    found = _find_elsewhere(examples, missing, on_disk)
    lost = [example for example in missing if example.image not in found]
    if len(lost) == len(examples):
        raise UserError(
            f"none of the {len(lost):,} images are on disk, the first is {lost[0].path}; unpack or copy them to "
            f"{root}, or set dataset.images to their folder"
        )
    unexpected = [example.path for example in lost if example.image not in absent]
    if unexpected and not skip_unreadable:
        kind = ", a link to a file that does not exist" if os.path.islink(unexpected[0]) else ""
        raise UserError(
            f"images captioned but not on disk: {len(unexpected):,}, the first is {unexpected[0]}{kind}; add them, or "
            "skip them with dataset.skip_unreadable=true"
        )
    places = sorted({os.path.relpath(os.path.dirname(path), root) for path in found.values()})
    names = [example.image for example in lost]
    notes = [f"photographs found in other folders of {root} ({listed(places)}): {len(found):,}"] if found else []
    if names:
        notes.append(f"images captioned but not on disk, which are skipped: {len(names):,} ({listed(names, 5)})")
    moved = dataset.map(lambda example: example._replace(path=found.get(example.image, example.path)))
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


def with_generated(
    dataset: Dataset, tokenizer: Tokenizer, captions: Places | None = None, keep_references: bool = False
) -> Dataset:
    """Return the data set with generated captions of the training images in place of their reference captions: the
    sequence-level knowledge distillation of Kim and Rush (2016).

    Args:
        tokenizer: of the model that is trained.
        captions: a result file of evaluate split=train, or several, as [a.json,b.json] or a quoted pattern; each has
            one or more captions of every training image. By default the reference captions stay.
        keep_references: train on these captions and on the reference captions.

    Raises:
        UserError: a file lacks a caption of a training image.
    """
    if captions is None:
        return dataset
    train = dataset.split("train")
    texts = {example.image: list(example.captions) if keep_references else [] for example in train}
    for path, file in read_all(find_caption_files(captions)).items():
        missing = []
        for image, image_captions in texts.items():
            sentences = [sentence for sentence in file.captions.get(image, ()) if tokenize(sentence)]
            for sentence in sentences:
                words = tokenizer.tokenize(sentence)
                image_captions.append(Caption(words, (), sentence.strip(), tokenize(sentence)))
            if not sentences:
                missing.append(image)
        if missing:
            raise UserError(
                f"{path} has no caption or an empty one of {len(missing):,} of {len(texts):,} training images "
                f"({listed(missing)}); write it by evaluate split=train decoding.min_length=1"
            )
    examples = tuple(example._replace(captions=tuple(texts[example.image])) for example in train)
    return dataset._replace(splits={**dataset.splits, "train": examples})
