"""MS COCO: the images of 2014 in Karpathy's splits, as the paper used them, and the release of 2017."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from showattendtell.arguments import Fraction, PositiveInt
from showattendtell.data.bulk import uncollected
from showattendtell.data.caption_forms import CaptionFile, read_coco_captions, read_karpathy
from showattendtell.data.captions import assemble, join_restval
from showattendtell.data.folders import check_images, find, look_in, open_folder
from showattendtell.data.instances import mark_instances
from showattendtell.data.shares import share_out
from showattendtell.records import Dataset

TEXT_FOLDERS = (".", "annotations")
"""Where the texts are: beside the image folders, or as COCO's zip unpacks."""


@uncollected()
def read_coco(
    root: str,
    captions: str = "dataset_coco.json",
    train_on_restval: bool = True,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    instances: str | Sequence[str] | None = None,
) -> Dataset:
    """MS COCO 2014 (Lin et al. 2014) in Karpathy's splits: 5,000 images each to validate and to test.

    Args:
        root: the folder that holds `train2014` and `val2014`, and the texts beside them or in `annotations`.
        captions: Karpathy's `dataset_coco.json`.
        train_on_restval: the 30,504 validation images that Karpathy left over (restval) join the 82,783 of train.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: pass over every image that is not on disk, and (when they are read) those that are broken.
        instances: COCO's instances, as [instances_train2014.json,instances_val2014.json], for the boxes of what
            captions name; looked for in `root` first.
    """
    folder = open_folder(root, "MS COCO's train2014 and val2014")
    file = read_karpathy(_find_text(folder, captions))
    if train_on_restval:
        file = join_restval(file)
    dataset = check_images(assemble("coco", file, folder, captions_per_image), skip_unreadable)
    return _marked(dataset, folder, instances)


@uncollected()
def read_coco2017(
    root: str,
    val2017: Literal["test", "val"] = "test",
    held_out: Fraction = 0.04,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    instances: str | Sequence[str] | None = None,
) -> Dataset:
    """MS COCO as released in 2017: 118,287 images in train2017 and 5,000 in val2017.

    Args:
        root: the folder that holds `train2017`, `val2017` and, in `annotations` or beside them, the captions of both.
        val2017: what val2017 is for; the other one of test and val is a part of train2017.
        held_out: how large that part is; a hash of an image's name decides which images are in it.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: pass over every image that is not on disk, and (when they are read) those that are broken.
        instances: COCO's instances, as [instances_train2017.json,instances_val2017.json], for the boxes of what
            captions name; looked for in `root` first.
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
    """The data set with the boxes of the instance files, if any are given."""
    if not instances:
        return dataset
    for name in [instances] if isinstance(instances, str) else instances:
        dataset = mark_instances(dataset, look_in([root / place for place in TEXT_FOLDERS], name))
    return dataset
