"""Splits for images without given ones: only a hash of an image's name decides, so that it stays in its split when
others are added."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from showattendtell.data.formats import CaptionFile
from showattendtell.data.tokenizers import tokenize
from showattendtell.errors import UserError, did_you_mean
from showattendtell.types import Caption, Dataset, Example


def share_out(images: Iterable[str], shares: Mapping[str, float]) -> dict[str, list[str]]:
    """Return about these fractions of the images, by split; `train` gets the rest.

    Raises `UserError` if no image is left for training, or a split has no image.
    """
    if sum(shares.values()) >= 1:
        fractions = " and ".join(f"dataset.{split}={share}" for split, share in shares.items())
        raise UserError(f"{fractions} leave no images to train on; their sum must be below 1")
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for image in images:
        splits[_choose(place_of(image), shares)].append(image)
    wanted = ["train", *(split for split, share in shares.items() if share)]
    empty = next((split for split in wanted if not splits[split]), None)
    if empty:
        total = sum(map(len, splits.values()))
        raise UserError(f"of {total:,} images none falls to {empty} by its name; give more, or tell their splits")
    return {split: splits[split] for split in wanted}


def _choose(place: float, shares: Mapping[str, float]) -> str:
    end = 0.0
    for split, share in shares.items():
        end += share
        if place < end:
            return split
    return "train"


def place_of(image: str) -> float:
    """Map a name to [0, 1), uniformly over names: the first 53 bits of its SHA-256."""
    return (int.from_bytes(hashlib.sha256(image.encode()).digest()[:8]) >> 11) / 2**53


SPLITS = ("train", "restval", "val", "test")
"""`restval` holds Karpathy's leftover validation images of COCO, to be added to train or left out."""

OUTSIDE = re.compile(r"[/\\]|\w:[/\\]|\.{0,2}$|(.*[/\\])?\.\.([/\\]|$)|.*\0", re.DOTALL)
"""Image names that do not lie within a folder."""


def assemble(name: str, file: CaptionFile, folder: Path, captions_per_image: int) -> Dataset:
    """Build the data set from the images in a file's splits, with tokenized captions.

    Captions beyond `captions_per_image` are dropped, as in the paper, and captions without a word too; a note gives
    their number. Raises `UserError` for an unknown split, and for an image that is listed twice in one or two splits,
    has no caption, or whose path leads out of the folder.
    """
    _check_splits(file)
    dropped, beyond = Counter[str](), f"beyond {captions_per_image} of an image"

    def example(image: str) -> Example:
        place = f"{file.folders[image]}/{image}" if image in file.folders else image
        if OUTSIDE.match(place):
            raise UserError(f"image {place!r} is no place within {folder}; name images by their path in that folder")
        said = file.captions.get(image, ())
        spoken = [Caption(words, (), sentence.strip()) for sentence in said if (words := tokenize(sentence))]
        captions = tuple(spoken[:captions_per_image])
        dropped["without a word"] += len(said) - len(spoken)
        dropped[beyond] += len(spoken) - len(captions)
        if not captions:
            raise UserError(f"image {image} stands in a split but has no caption; add one, or take it from the split")
        return Example(image, f"{folder}/{place}", captions)

    splits = {split: tuple(example(image) for image in images) for split, images in file.splits.items()}
    notes = (f"dropped captions {why}: {count:,}" for why, count in dropped.items() if count)
    return Dataset(name, splits, tuple(notes))


def _check_splits(file: CaptionFile) -> None:
    for split in file.splits:
        if split not in SPLITS:
            raise UserError(f"there is no split '{split}'{did_you_mean(split, SPLITS)}")
    listed = Counter(image for images in file.splits.values() for image in images)
    twice = next((image for image, count in listed.items() if count > 1), None)
    if twice:
        where = ", ".join(split for split, images in file.splits.items() if twice in images)
        raise UserError(f"image {twice} is listed more than once ({where}); keep one of its entries")


def join_restval(file: CaptionFile) -> CaptionFile:
    """Return the file with the images of `restval` appended to those of `train`."""
    splits = {split: images for split, images in file.splits.items() if split != "restval"}
    left_over = file.splits.get("restval", [])
    return file._replace(splits={**splits, "train": [*splits.get("train", []), *left_over]}) if left_over else file
