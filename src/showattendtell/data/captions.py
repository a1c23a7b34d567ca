"""From captions by image to the examples of each split."""

import re
from collections import Counter
from pathlib import Path

from showattendtell.data.caption_forms import CaptionFile
from showattendtell.errors import UserError, did_you_mean
from showattendtell.records import Caption, Dataset, Example
from showattendtell.text.tokenize import tokenize

SPLITS = ("train", "restval", "val", "test")
"""`restval` is what Karpathy left of COCO's validation images: to train on, or to be left out."""

OUTSIDE = re.compile(r"[/\\]|\w:[/\\]|\.{0,2}$|(.*[/\\])?\.\.([/\\]|$)|.*\0", re.DOTALL)
"""An image name that is no place within a folder."""


def assemble(name: str, file: CaptionFile, folder: Path, captions_per_image: int) -> Dataset:
    """The images of a file that stand in its splits, with the captions in words.

    Captions beyond `captions_per_image` are dropped, as the paper does, and those without a word too; a note counts
    them. Raises `UserError` for an unknown split, for an image that is listed twice, in one split or in two, that has
    no caption, or whose name leads out of the folder.
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
    """The file with the images of `restval` behind those of `train`."""
    splits = {split: images for split, images in file.splits.items() if split != "restval"}
    left_over = file.splits.get("restval", [])
    return file._replace(splits={**splits, "train": [*splits.get("train", []), *left_over]}) if left_over else file
