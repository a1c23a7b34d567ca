"""Data sets of your own photographs, with captions in any supported format, and of captions without photographs."""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import Field

from showattendtell.data.assembly import (
    SKIP,
    assemble,
    check_images,
    join_restval,
    look_in,
    open_folder,
    split_by_hash,
)
from showattendtell.data.flickr import image_number
from showattendtell.data.formats import PLAIN, SUFFIXES, read_caption_folder, read_captions
from showattendtell.data.languages import CaptionFiles, read_languages
from showattendtell.data.parsing import CaptionFile, read_list, split_of_name
from showattendtell.errors import UserError, listed, printable
from showattendtell.runtime.memory import paused_collection
from showattendtell.settings import Fraction, PositiveInt, Text
from showattendtell.types import Dataset

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


@paused_collection()
def read_custom(
    root: Text,
    captions: CaptionFiles | None = None,
    images: Text | None = None,
    splits: Text | None = None,
    val: Fraction = 0.1,
    test: Fraction = 0.1,
    name: Name | None = None,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    skip_missing: bool = False,
) -> Dataset:
    """Read images and captions of your own.

    Args:
        root: folder of the data set.
        captions: CSV, JSON lines, COCO's or Karpathy's JSON or Flickr's token file, searched in `root` first; by
            default the file `captions.csv` (.tsv, .jsonl, .json, .token, .txt) there, or else a text file next to each
            image, one caption per line. Or the file of each language by its code, as {de: german.csv}.
        images: folder of the images, searched in `root` first; by default `images` there, or else `root`.
        splits: folder with the lists train.txt, val.txt and test.txt, one image name per line, searched in `root`
            first; by default the splits of the caption file.
        val, test: fractions of the images for validation and test, if no splits are given; a hash of an image's name
            decides, so that no image changes its split when others are added.
        name: data set name of grids and results; by default built from the folder's name and path.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        skip_missing: skip images without captions, and captions without images.
    """
    folder = open_folder(root, "your images")
    if images is None:
        image_folder = folder / "images" if (folder / "images").is_dir() else folder
    else:
        image_folder = look_in([folder], images)
    if not image_folder.is_dir():
        raise UserError(f"there is no folder {images} in {folder}; set dataset.images to the folder of the images")
    # different folders of one name do not share stored grids
    path = folder.resolve()
    own_name = name or f"{printable(path.name)}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"

    def read(file_name: str | None) -> Dataset:
        texts = _find_captions(folder, file_name)
        lists = look_in([folder], splits) if splits else None
        file = _read_references(texts) if texts else read_caption_folder(image_folder, lists, skip_missing)
        if file.form == PLAIN:
            raise UserError(f"{texts} names no images; write CSV with the columns image and caption")
        if lists is None and texts and not file.splits:
            lists = next(filter(_find_lists, (folder, folder / "splits")), None)
        file = _listed(file, lists, skip_missing) if lists else _with_splits(file, {"val": val, "test": test})
        file = join_restval(_note_unused_images(image_folder, file))
        dataset = assemble(own_name, file, image_folder, captions_per_image, skip_missing)
        return check_images(dataset, skip_unreadable or skip_missing)

    return read(None) if captions is None else read_languages(captions, read)


@paused_collection()
def read_text(
    root: Text,
    captions: CaptionFiles,
    exclude: Sequence[Text] = (),
    val: Fraction = 0.05,
    test: Fraction = 0.0,
    captions_per_image: PositiveInt = 5,
) -> Dataset:
    """Read captions without photographs, for a language model.

    Args:
        root: folder in which files are searched first.
        captions: a caption file in any format, or text with one caption per line; or the file of each language by its
            code.
        exclude: lists of images whose captions are left out, one name per line, such as the validation and test images
            of another data set. Names with the same number, as `NUMBER_HASH.jpg` of Flickr8k and `NUMBER.jpg` of
            Flickr30k, or else with the same stem, are the same image.
        val, test: fractions of the images for validation and test, if the file has no splits; a hash of an image's name
            decides.
        captions_per_image: captions beyond this number are dropped.
    """
    folder = open_folder(root, "the captions")
    excluded = {image_number(image) for name in exclude for image in read_list(look_in([folder], name))}

    def read(file_name: str) -> Dataset:
        texts = look_in([folder], file_name)
        file = _read_references(texts)
        kept = {image: said for image, said in file.captions.items() if image_number(image) not in excluded}
        splits = {split: [image for image in images if image in kept] for split, images in file.splits.items()}
        notes = (f"images left out by dataset.exclude: {len(file.captions) - len(kept):,}",) if exclude else ()
        file = _with_splits(file._replace(captions=kept, splits=splits, notes=notes), {"val": val, "test": test})
        return assemble(texts.stem, join_restval(file), None, captions_per_image)

    return read_languages(captions, read)


def _read_references(path: Path) -> CaptionFile:
    """Read a caption file; raise `UserError` for one of generated captions."""
    file = read_captions(path)
    if file.references:
        raise UserError(f"{path} holds a model's captions; give a file of reference captions")
    return file


def _with_splits(file: CaptionFile, shares: Mapping[str, float]) -> CaptionFile:
    """Return the file with splits, and a note if it had none."""
    if file.splits:
        return file
    split_of = {
        image: next(filter(None, map(split_of_name, PurePath(image).parts[-2::-1])), "") for image in file.captions
    }
    if len({*split_of.values()} - {""}) > 1:
        splits = {split: [image for image in split_of if split_of[image] == split] for split in split_of.values()}
        if "" in splits:
            raise UserError(
                f"the folder of image {splits[''][0]} names no split, others do; set dataset.splits to lists"
            )
        note = f"the folders of the images are the splits {', '.join(splits)}"
    else:
        splits = split_by_hash(file.captions, shares)
        counts = ", ".join(f"{len(images):,} for {split}" for split, images in splits.items())
        note = f"no splits are given, so a hash of the images' names chooses {counts}"
    return file._replace(splits=splits, notes=(*file.notes, note))


def _note_unused_images(folder: Path, file: CaptionFile) -> CaptionFile:
    """Return the file with a note about the images in a folder that it does not name."""
    captioned = {unicodedata.normalize("NFC", str(Path(file.folders.get(image, ""), image))) for image in file.captions}
    unused = []
    for path in sorted(folder.rglob("[!.]*")):
        name = str(path.relative_to(folder))
        if path.suffix.lower() in SUFFIXES and unicodedata.normalize("NFC", name) not in captioned:
            unused.append(name)
    if not unused:
        return file
    note = f"images without captions, which are not used: {len(unused):,} ({listed(unused)})"
    return file._replace(notes=(*file.notes, note))


def _find_captions(root: Path, given: str | None) -> Path | None:
    """Return the caption file; None if every image has its own text file."""
    if given:
        return look_in([root], given)
    names = [f"captions.{suffix}" for suffix in ("csv", "tsv", "jsonl", "json", "token", "txt")]
    existing = [name for name in names if (root / name).is_file()]
    if len(existing) > 1:
        raise UserError(f"{root} has {' and '.join(existing)}; choose one with dataset.captions=NAME")
    return root / existing[0] if existing else None


def _find_lists(folder: Path) -> dict[str, Path]:
    """Return the list of each split in a folder: `train.txt`, `Val.txt`, `dev.txt` and so on."""
    lists: dict[str, Path] = {}
    for path in sorted(folder.glob("*.[tT][xX][tT]")):
        if split := split_of_name(path.stem):
            if split in lists:
                raise UserError(f"{lists[split]} and {path.name} are both lists of {split}; remove one")
            lists[split] = path
    return lists


def _listed(file: CaptionFile, folder: Path, skip_missing: bool) -> CaptionFile:
    """Return the file with the splits of the lists in a folder, and a note about images that are in no list."""
    lists = _find_lists(folder)
    if not lists:
        raise UserError(f"{folder} has no lists train.txt, val.txt and test.txt; add them, or leave dataset.splits out")
    splits = {split: read_list(path) for split, path in lists.items()}
    for split, listed_images in splits.items():
        unknown = [image for image in listed_images if image not in file.captions]
        if unknown and not skip_missing:
            raise UserError(
                f"{lists[split]} names images without captions: {len(unknown):,} ({listed(unknown)}); add captions, or "
                f"{SKIP}"
            )
    left_out = len(file.captions.keys() - {image for listed_images in splits.values() for image in listed_images})
    notes = (f"images with captions that no list names are left out: {left_out:,}",) if left_out else ()
    return file._replace(splits=splits, notes=notes)
