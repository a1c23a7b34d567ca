"""The splits of a caption file: whatever looks like a split is used or refused, in every format and spelling."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from showattendtell.errors import UserError
from showattendtell.readers.custom import read_custom
from showattendtell.readers.formats import read_captions

Rows = list[tuple[str, str, Any]]
"""Image, caption and the value of the field."""

ROWS = {"a.jpg": "train", "b.jpg": "train", "c.jpg": "val", "d.jpg": "test"}


Write = Callable[[Path, str, Rows], Path]


def file(name: str, text: Callable[[str, Rows], str]) -> Write:
    """Write rows with a field of that name to a file."""

    def write(folder: Path, field: str, rows: Rows) -> Path:
        (folder / name).write_text(text(field, rows))
        return folder / name

    return write


def table(delimiter: str) -> Write:
    def text(field: str, rows: Rows) -> str:
        cells = [[image, caption, "" if split is None else str(split)] for image, caption, split in rows]
        return "".join(f"{delimiter.join(row)}\n" for row in [["image", "caption", field], *cells])

    return file("captions.csv", text)


def json_lines(field: str, rows: Rows) -> str:
    return "".join(f"{json.dumps({'file_name': i, 'text': caption, field: split})}\n" for i, caption, split in rows)


def coco(field: str, rows: Rows, place: str = "images") -> str:
    images = [{"id": number, "file_name": image} for number, (image, *_) in enumerate(rows)]
    annotations = [{"image_id": number, "caption": caption} for number, (_, caption, _) in enumerate(rows)]
    content = {"images": images, "annotations": annotations}
    for entry, (*_, split) in zip(content[place], rows, strict=True):
        entry[field] = split
    return json.dumps(content)


def karpathy(field: str, rows: Rows) -> str:
    said = [{"filename": image, "sentences": [{"raw": caption}], field: split} for image, caption, split in rows]
    return json.dumps({"images": said})


WRITERS = {
    "CSV": table(","),
    "TSV": table("\t"),
    "JSON lines": file("captions.jsonl", json_lines),
    "COCO images": file("captions.json", coco),
    "COCO annotations": file("captions.json", lambda *told: coco(*told, place="annotations")),
    "Karpathy": file("captions.json", karpathy),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def rows_of(splits: Mapping[str, Any]) -> Rows:
    return [(image, f"a dog {number}", split) for number, (image, split) in enumerate(splits.items())]


@writers
@pytest.mark.parametrize(
    ("field", "train", "val", "test"),
    [
        ("split", "train", "val", "test"),
        ("SPLITS", "training", "validation", "testing"),
        ("karpathy_split", "Train ", "VALID", "Test"),
        ("imageSubset", "trn", "dev", "tst"),
        ("Set", "train", "val", "test"),
        ("role", "train", "val", "test"),
    ],
)
def test_a_field_is_the_split_whatever_its_name(
    tmp_path: Path, write: Write, field: str, train: str, val: str, test: str
):
    rows = {"a.jpg": train, "b.jpg": train, "c.jpg": val, "d.jpg": test}
    assert read_captions(write(tmp_path, field, rows_of(rows))).split_of == ROWS


@writers
@pytest.mark.parametrize("missing", ["", None])
def test_an_image_without_a_split_among_others_is_refused(tmp_path: Path, write: Write, missing: Any):
    file = write(tmp_path, "split", rows_of({**ROWS, "d.jpg": missing}))
    with pytest.raises(UserError, match="image d.jpg is in no split, others are"):
        read_captions(file)


@writers
def test_a_field_of_other_values_is_no_split(tmp_path: Path, write: Write):
    """In COCO a train is a category."""
    assert read_captions(write(tmp_path, "label", rows_of(dict.fromkeys(ROWS, "train")))).split_of == {}


def lines_of(captions: list[str]) -> str:
    return "image\tcaption\n" + "".join(f"{number}.jpg\t{caption}\n" for number, caption in enumerate(captions))


def captions_in(folder: Path, text: str, name: str = "captions.tsv") -> list[str]:
    (folder / name).write_text(text, newline="")
    return [caption for captions in read_captions(folder / name).captions.values() for caption in captions]


def test_a_lone_quote_is_a_character(tmp_path: Path):
    said = ["a dog", '"Look', "a cat", 'say "hi" twice', '"Look" he says', "a bird", '"']
    assert captions_in(tmp_path, lines_of(said)) == said


def test_a_cell_in_quotes_is_unquoted(tmp_path: Path):
    said = ['"a ""big"" dog"', '"a\ttab"', '"two\nlines of one caption"']
    assert captions_in(tmp_path, lines_of(said)) == ['a "big" dog', "a\ttab", "two\nlines of one caption"]


@pytest.mark.parametrize("suffix", [".jpg", ""])
@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_quotes_that_enclose_rows_are_an_error_with_the_line(tmp_path: Path, delimiter: str, suffix: str):
    said = ["a dog", '"Look', "a cat", 'the end"', "a bird"]
    text = lines_of(said).replace("\t", delimiter).replace(".jpg", suffix)
    with pytest.raises(UserError, match=r"line 3: a caption of several lines has the name of an image"):
        captions_in(tmp_path, text)


def test_several_columns_of_captions_are_all_read(tmp_path: Path):
    text = "image,caption,caption_2,caption3\na.jpg,a dog,a puppy,\nb.jpg,a cat,a kitten,a tom\n"
    assert captions_in(tmp_path, text, "captions.csv") == ["a dog", "a puppy", "a cat", "a kitten", "a tom"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("captions.token", "a.jpg#0\ta dog\ttrain\n", "line 1: expected"),
        (
            "captions.json",
            '{"images": [{"id": 1, "is_test": true}], "annotations": [{"image_id": 1, "caption": "a"}]}',
            "is_test=True is not a split",
        ),
        (
            "captions.json",
            '{"images": [{"id": 1, "train": 1, "val": 0}], "annotations": [{"image_id": 1, "caption": "a"}]}',
            "train=1 is not a split",
        ),
        (
            "captions.json",
            '{"images": [{"filename": "a", "sentences": [], "split": "train", "subset": "val"}]}',
            "subset=val, but the split of image a is 'train' elsewhere; keep one",
        ),
        ("captions.csv", "image,caption,x\na.jpg,a,train\nb.jpg,b,val\nc.jpg,c,\n", "c.jpg is in no split, others are"),
        ("captions.csv", "image,caption,x\na.jpg,a,train\nb.jpg,b,val\nc.jpg,c,held\n", "x=held is not a split"),
    ],
)
def test_a_split_in_another_place_is_refused(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_captions(tmp_path / name)


@pytest.mark.parametrize("names", [("train", "val", "test"), ("trainImages", "dev", "testing_set")])
@pytest.mark.parametrize("setting", [{}, {"splits": "."}])
def test_lists_next_to_the_captions_are_the_splits(
    tmp_path: Path, names: tuple[str, str, str], setting: dict[str, str]
):
    write_images(tmp_path, [*ROWS])
    for split, name in zip(("train", "val", "test"), names, strict=True):
        images = [image for image, own in ROWS.items() if own == split]
        (tmp_path / f"{name}.txt").write_text("\n".join(images))
    splits = read_custom(str(tmp_path), **setting).splits
    assert {example.image: split for split, part in splits.items() for example in part} == ROWS


FOLDERS = [
    ("train", "validation", "test"),
    ("all/Training", "all/dev", "all/tst"),
    ("train2014", "val2014", "test_images"),
]


def write_images(tmp_path: Path, images: list[str]) -> None:
    (tmp_path / "captions.csv").write_text("image,caption\n" + "".join(f"{image},a dog\n" for image in images))
    for image in images:
        (tmp_path / image).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / image).touch()


@pytest.mark.parametrize("folders", FOLDERS)
def test_folders_of_splits_are_the_splits(tmp_path: Path, folders: tuple[str, str, str]):
    train, val, test = folders
    write_images(tmp_path, [f"{train}/a.jpg", f"{train}/b.jpg", f"{val}/c.jpg", f"{test}/d.jpg"])
    splits = read_custom(str(tmp_path)).splits
    assert {split: len(part) for split, part in splits.items()} == {"train": 2, "val": 1, "test": 1}


@pytest.mark.parametrize("other", ["", "extra/"])
def test_an_image_outside_of_the_folders_of_splits_is_refused(tmp_path: Path, other: str):
    write_images(tmp_path, ["train/a.jpg", "val/b.jpg", f"{other}c.jpg"])
    with pytest.raises(UserError, match=rf"the folder of image {other}c.jpg names no split, others do"):
        read_custom(str(tmp_path))


def test_two_lists_of_one_split_are_refused(tmp_path: Path):
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    for name in ("train", "training"):
        (tmp_path / f"{name}.txt").write_text("a.jpg")
    with pytest.raises(UserError, match=r"train.txt and training.txt are both lists of train"):
        read_custom(str(tmp_path), splits=".")
