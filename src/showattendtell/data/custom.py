"""Data sets of your own photographs, with captions in any supported format, and of captions without photographs."""

import hashlib
import io
import json
import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from PIL import Image
from pydantic import Field

from showattendtell.data.assembly import assemble, check_images, look_in, open_folder
from showattendtell.data.discovery import read_found, read_references, read_sidecars
from showattendtell.data.flickr import image_number
from showattendtell.data.formats import PLAIN
from showattendtell.data.json_formats import read_record
from showattendtell.data.languages import CaptionFiles, read_languages
from showattendtell.data.names import inside, photographs
from showattendtell.data.parsing import is_split_field, read_list
from showattendtell.data.splits import find_lists, join_restval, with_lists, with_splits, with_validation
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
        captions: CSV, JSON lines, COCO's or Karpathy's JSON, Flickr's token file, Excel or Parquet, searched in `root`
            first; by default `captions.csv` there or the likeliest caption file in the folder, one for each split, or
            else a text file next to each image, one caption per line. Or the file of each language by its code, as
            {de: german.csv}.
        images: folder of the images, searched in `root` first; by default `images` there, or else `root`. Images that
            are not in it are searched in `root` by their names.
        splits: folder with the lists train.txt, val.txt and test.txt, one image name per line, searched in `root`
            first; by default the splits of the caption file.
        val, test: fractions of the images for validation and test, if no splits are given; a hash of an image's name
            decides, so that no image changes its split when others are added. If the splits have no `val`, it gets this
            fraction of the training images.
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
        lists = look_in([folder], splits) if splits else None
        found = read_references(look_in([folder], file_name)) if file_name else read_found(folder)
        file = found or read_sidecars(image_folder, folder, lists, skip_missing)
        if file.form == PLAIN:
            raise UserError(f"{file_name} names no images; write CSV with the columns image and caption")
        file = file.renamed(inside)
        if lists is None and found and not file.splits:
            lists = next(filter(find_lists, (folder, folder / "splits")), None)
        file = with_lists(file, lists, skip_missing) if lists else with_splits(file, {"val": val, "test": test})
        file = with_validation(join_restval(file), val)
        dataset = assemble(own_name, file, image_folder, captions_per_image, skip_missing)
        dataset = check_images(dataset, skip_unreadable or skip_missing, folder)
        return _note_unused_images(image_folder, dataset)

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
        file = read_references(texts)
        kept = {image: said for image, said in file.captions.items() if image_number(image) not in excluded}
        splits = {split: [image for image in images if image in kept] for split, images in file.splits.items()}
        notes = (f"images left out by dataset.exclude: {len(file.captions) - len(kept):,}",) if exclude else ()
        file = with_splits(file._replace(captions=kept, splits=splits, notes=notes), {"val": val, "test": test})
        return assemble(texts.stem, join_restval(file), None, captions_per_image)

    return read_languages(captions, read)


def _note_unused_images(folder: Path, dataset: Dataset) -> Dataset:
    """Return the data set with a note about the images in a folder that it does not name."""
    used = {unicodedata.normalize("NFC", example.path) for example in dataset.examples()}
    unused = [path for path in photographs(folder) if unicodedata.normalize("NFC", path) not in used]
    names = listed([os.path.relpath(path, folder) for path in unused])
    notes = [f"images without captions, which are not used: {len(unused):,} ({names})"] if unused else []
    return dataset._replace(notes=(*dataset.notes, *notes))


def write_rows(dataset: Any, cache: Path) -> Path:
    """Write the photographs and captions of a `datasets.Dataset`, or of a `DatasetDict` by split, to a folder.

    Photographs are written as they are stored, once for all rows that have them. A column of names instead of
    photographs is kept.

    Args:
        dataset: what `load_dataset` returns, with a column of images and one or several of captions.
        cache: the folder is in its `data_sets`, under a checksum of the content.

    Raises:
        UserError: a column is missing.
    """
    place = cache / "data_sets"
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as unfinished:
        text = "".join(f"{json.dumps(row)}\n" for row in _rows(dataset, Path(unfinished) / "images"))
        (Path(unfinished) / "captions.jsonl").write_text(text, encoding="utf-8")
        folder = place / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with suppress(OSError):  # it exists, from an earlier run or another process
            os.replace(unfinished, folder)
    return folder


def _rows(dataset: Any, images: Path) -> Iterator[dict[str, Any]]:
    """Yield the image's name, the captions and the split of each row, and write its photograph."""
    splits = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    for split, rows in splits.items():
        features = rows.features or {}
        photographs = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
        for name in photographs:
            rows = rows.cast_column(name, type(features[name])(decode=False))
        for number, row in enumerate(rows):
            for name in photographs[:1]:
                row["image"] = _write_photograph(row.pop(name), images)
            _, image, captions, fields = read_record(row, f"row {number} of {split}")
            named = next((value for field, value in fields.items() if is_split_field(field)), "")
            yield {"image": image, "captions": captions, "split": named or (split if len(splits) > 1 else "")}


def _write_photograph(stored: Mapping[str, Any], images: Path) -> str:
    """Write an encoded photograph, or the file that it names, and return its name."""
    content = stored["bytes"] or Path(stored["path"]).read_bytes()
    with Image.open(io.BytesIO(content)) as image:
        suffix = (image.format or "jpeg").lower()
    path = images / f"{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    images.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path.name
