"""MS COCO: the 2014 images in Karpathy's splits, as in the paper, and the 2017 release."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from showattendtell.data.files import check_images, find, look_in, open_folder, without_garbage_collection
from showattendtell.data.formats import CaptionFile, read_coco_captions, read_karpathy
from showattendtell.data.instances import mark_instances
from showattendtell.data.splits import assemble, join_restval, share_out
from showattendtell.settings import Fraction, PositiveInt
from showattendtell.types import Dataset

TEXT_FOLDERS = (".", "annotations")
"""Where the texts are: beside the image folders, or as COCO's zip unpacks."""


@without_garbage_collection()
def read_coco(
    root: str,
    captions: str = "dataset_coco.json",
    train_on_restval: bool = True,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    instances: str | Sequence[str] | None = None,
) -> Dataset:
    """Read MS COCO 2014 (Lin et al. 2014) in Karpathy's splits: 5,000 images each for validation and test.

    Args:
        root: folder that holds `train2014` and `val2014`, with the captions there or in `annotations`.
        captions: Karpathy's `dataset_coco.json`.
        train_on_restval: add Karpathy's 30,504 leftover validation images (restval) to the 82,783 of train.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        instances: COCO's instance files, as [instances_train2014.json,instances_val2014.json], for the boxes of objects
            that captions name; searched in `root` first.
    """
    folder = open_folder(root, "MS COCO's train2014 and val2014")
    file = read_karpathy(_find_text(folder, captions))
    if train_on_restval:
        file = join_restval(file)
    dataset = check_images(assemble("coco", file, folder, captions_per_image), skip_unreadable)
    return _marked(dataset, folder, instances)


@without_garbage_collection()
def read_coco2017(
    root: str,
    val2017: Literal["test", "val"] = "test",
    held_out: Fraction = 0.04,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    instances: str | Sequence[str] | None = None,
) -> Dataset:
    """Read the 2017 release of MS COCO: 118,287 images in train2017 and 5,000 in val2017.

    Args:
        root: folder that holds `train2017` and `val2017`, with the captions of both there or in `annotations`.
        val2017: the split that val2017 becomes; the other one of test and val is a part of train2017.
        held_out: fraction of train2017 in that part; a hash of an image's name decides which images are in it.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        instances: COCO's instance files, as [instances_train2017.json,instances_val2017.json], for the boxes of objects
            that captions name; searched in `root` first.
    """
    folder = open_folder(root, "MS COCO's train2017 and val2017")
    train, val = (read_coco_captions(_find_text(folder, f"captions_{part}.json")) for part in ("train2017", "val2017"))
    other = "val" if val2017 == "test" else "test"
    splits = {**share_out(train.captions, {other: held_out}), val2017: list(val.captions)}
    file = CaptionFile(
        train.form,
        {**train.captions, **val.captions},
        splits=splits,
        folders={**dict.fromkeys(train.captions, "train2017"), **dict.fromkeys(val.captions, "val2017")},
    )
    dataset = check_images(assemble("coco2017", file, folder, captions_per_image), skip_unreadable)
    return _marked(dataset, folder, instances)


def _find_text(root: Path, name: str) -> Path:
    return find(root, [f"{place}/{name}" for place in TEXT_FOLDERS], "the caption file")


def _marked(dataset: Dataset, root: Path, instances: str | Sequence[str] | None) -> Dataset:
    """Return the data set with the boxes of the instance files, if any are given."""
    if not instances:
        return dataset
    for name in [instances] if isinstance(instances, str) else instances:
        dataset = mark_instances(dataset, look_in([root / place for place in TEXT_FOLDERS], name))
    return dataset
