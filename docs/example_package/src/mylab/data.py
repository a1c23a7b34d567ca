"""A data set, and a data module."""

from pathlib import Path
from typing import Any

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.readers.assembly import split_by_hash
from showattendtell.settings import Fraction, PositiveInt, Text
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import Caption, Dataset, Example


def read_named(root: Text, val: Fraction = 0.2, test: Fraction = 0.2, skip_unreadable: bool = False) -> Dataset:
    """Photographs whose names are their captions: a-dog-runs.jpg.

    Args:
        root: folder of the photographs.
        val, test: fractions of the photographs.
        skip_unreadable: skip broken images.
    """
    files = {file.name: file for file in sorted(Path(root).glob("*.jpg"))}

    def example(name: str) -> Example:
        sentence = files[name].stem.replace("-", " ")
        return Example(name, str(files[name]), (Caption(tokenize(sentence), (), sentence),))

    split_of = split_by_hash(files, {"val": val, "test": test})
    splits: dict[str, list[Example]] = {"train": [], "val": [], "test": []}
    for name, split in split_of.items():
        splits[split].append(example(name))
    return Dataset("named", {split: tuple(examples) for split, examples in splits.items()})


class FewCaptions(CaptionDataModule):
    """Trains on the first captions of each image; the other settings are those of `CaptionDataModule`.

    Args:
        captions_per_image: the number of captions.
    """

    def __init__(self, dataset: Dataset, captions_per_image: PositiveInt = 1, **others: Any):
        train = tuple(
            example._replace(captions=example.captions[:captions_per_image]) for example in dataset.split("train")
        )
        super().__init__(dataset._replace(splits={**dataset.splits, "train": train}), **others)
