"""A user's own photographs, with captions in any form that caption files are published in."""

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from showattendtell.arguments import Fraction, PositiveInt, Text
from showattendtell.data.bulk import uncollected
from showattendtell.data.caption_files import read_captions
from showattendtell.data.caption_folder import read_caption_folder
from showattendtell.data.caption_forms import PLAIN, CaptionFile
from showattendtell.data.captions import SPLITS, assemble, join_restval
from showattendtell.data.folders import check_images, look_in, open_folder
from showattendtell.data.shares import share_out
from showattendtell.data.text_files import read_list
from showattendtell.errors import UserError
from showattendtell.records import Dataset

CAPTION_FILES = [f"captions.{suffix}" for suffix in ("csv", "tsv", "jsonl", "json", "token", "txt")]

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


@uncollected()
def read_custom(
    root: Text,
    captions: Text | None = None,
    images: Text | None = None,
    splits: Text | None = None,
    val: Fraction = 0.1,
    test: Fraction = 0.1,
    name: Name | None = None,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
) -> Dataset:
    """Images and captions of your own.

    Args:
        root: the folder of the data set.
        captions: CSV, JSON lines, COCO's or Karpathy's JSON or Flickr's token file, looked for in `root` first; by
            default the file `captions.csv` (.tsv, .jsonl, .json, .token, .txt) there, or else a text file beside each
            image, a caption a line.
        images: the folder of the images, looked for in `root` first; by default `images` there, or else `root`.
        splits: a folder with the lists train.txt, val.txt and test.txt, an image name a line, looked for in `root`
            first; by default the splits that the caption file tells.
        val, test: the shares of the images to validate and to test, where no splits are told; a hash of an image's name
            decides, so that no image changes its split when others are added.
        name: what grids and results are kept under; by default made of the folder's name and place.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: pass over every image that is not on disk, and (when they are read) those that are broken.
    """
    folder = open_folder(root, "your images")
    place = _find_images(folder, images)
    texts = _find_captions(folder, captions)
    lists = look_in([folder], splits) if splits else None
    file = _read_named(texts) if texts else read_caption_folder(place, lists)
    notes: tuple[str, ...] = ()
    if lists:
        file, notes = _listed(file, lists)
    elif not file.splits:
        file = file._replace(splits=share_out(file.captions, {"val": val, "test": test}))
        counts = ", ".join(f"{len(named):,} for {split}" for split, named in file.splits.items())
        notes = (f"no splits are told, so a hash of the images' names chooses {counts}",)
    dataset = assemble(name or _name(folder), join_restval(file), place, captions_per_image)
    return check_images(dataset._replace(notes=(*notes, *dataset.notes)), skip_unreadable)


def _find_images(root: Path, given: str | None) -> Path:
    if given is None:
        return root / "images" if (root / "images").is_dir() else root
    place = look_in([root], given)
    if not place.is_dir():
        raise UserError(f"there is no folder {given} in {root}; set dataset.images to the folder of the images")
    return place


def _find_captions(root: Path, given: str | None) -> Path | None:
    """None where every image has its own text."""
    if given:
        return look_in([root], given)
    found = [name for name in CAPTION_FILES if (root / name).is_file()]
    if len(found) > 1:
        raise UserError(f"{root} has {' and '.join(found)}; choose one with dataset.captions=NAME")
    return root / found[0] if found else None


def _read_named(path: Path) -> CaptionFile:
    """What people say in a file that names images."""
    file = read_captions(path)
    if file.form == PLAIN:
        raise UserError(f"{path} names no images; write CSV with the columns image and caption")
    if file.references:
        raise UserError(f"{path} holds a model's captions; give a file of people's")
    return file


def _listed(file: CaptionFile, folder: Path) -> tuple[CaptionFile, tuple[str, ...]]:
    """The file with the splits of the lists in a folder, and a note on images that no list names."""
    lists = {split: folder / f"{split}.txt" for split in SPLITS}
    splits = {split: read_list(path) for split, path in lists.items() if path.exists()}
    if not splits:
        raise UserError(f"{folder} has no lists train.txt, val.txt and test.txt; add them, or leave dataset.splits out")
    for split, named in splits.items():
        strange = next((image for image in named if image not in file.captions), None)
        if strange:
            raise UserError(f"{lists[split]} names {strange}, which has no captions; add some, or remove it there")
    left_out = len(file.captions) - len({image for named in splits.values() for image in named})
    notes = (f"images with captions that no list names are left out: {left_out:,}",) if left_out else ()
    return file._replace(splits=splits), notes


def _name(folder: Path) -> str:
    """Two folders of one name do not share stored grids."""
    place = folder.resolve()
    return f"{place.name}-{hashlib.sha256(str(place).encode()).hexdigest()[:6]}"
