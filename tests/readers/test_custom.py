"""A user's own data set in a table, and what `datasets.load_dataset` returns, written to a folder."""

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pictures
from repository import ROOT

from showattendtell.errors import UserError
from showattendtell.readers.assembly import split_by_hash
from showattendtell.readers.custom import read_custom, write_rows
from showattendtell.readers.formats import read_captions
from showattendtell.types import Dataset

SPLITS = {"train": ["b.jpg", "sub/a.jpg"], "val": ["c.png"], "test": ["d.jpg"]}
SAID = {
    "b.jpg": ["A dog , a cat .", 'It says "stop" .'],
    "sub/a.jpg": ["Two cats ."],
    "c.png": ["A café ."],
    "d.jpg": ["Nobody ."],
}


def owner(splits: dict[str, list[str]]) -> dict[str, str]:
    return {image: split for split, images in splits.items() for image in images}


def write_csv(root: Path, said: dict[str, list[str]], splits: dict[str, list[str]]) -> None:
    with (root / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["split", "image", "caption"])
        rows.writerows([split, image, text] for image, split in owner(splits).items() for text in said[image])


def names(dataset: Dataset) -> dict[str, list[str]]:
    return {split: [example.image for example in examples] for split, examples in dataset.splits.items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Images without captions yet."""
    for image in SAID:
        (tmp_path / "own/images" / image).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own/images" / image).touch()
    return tmp_path / "own"


@pytest.mark.parametrize("given", [None, "annotations/captions.csv"])
def test_lists_next_to_the_captions_are_the_splits(root: Path, given: str | None):
    (root / "annotations").mkdir()
    rows = "".join(f"{image},A dog\n" for image in SAID)
    (root / "annotations/captions.csv").write_text(f"image,caption\n{rows}")
    for split, images in SPLITS.items():
        (root / f"annotations/{split}.txt").write_text("\n".join(images))
    assert names(read_custom(str(root), captions=given)) == SPLITS


def test_lists_precede_the_splits_of_the_file_and_a_hash_is_the_last_choice(root: Path):
    write_csv(root, SAID, SPLITS)
    for split, image in {"train": "d.jpg", "val": "b.jpg"}.items():
        (root / f"{split}.txt").write_text(image)
    assert names(read_custom(str(root), splits=".")) == {"train": ["d.jpg"], "val": ["b.jpg"]}
    for split in ("train", "val"):
        (root / f"{split}.txt").unlink()
    (root / "captions.csv").write_text("image,caption\n" + "".join(f"{image},A dog\n" for image in SAID))
    dataset = read_custom(str(root), val=0.2, test=0.3)
    assert owner(names(dataset)) == split_by_hash(SAID, {"val": 0.2, "test": 0.3})
    assert dataset.notes == ("no splits are given, so a hash of the images' names chooses them",)


def test_captions_and_images_may_be_anywhere(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_csv(root, SAID, SPLITS)
    (root / "captions.csv").rename(tmp_path / "said.csv")
    (root / "images").rename(tmp_path / "photographs")
    monkeypatch.chdir(tmp_path)
    dataset = read_custom(str(root), captions="said.csv", images=str(tmp_path / "photographs"))
    assert dataset.split("val")[0].path == str(tmp_path / "photographs" / "c.png")


def test_two_folders_of_one_name_are_two_data_sets(root: Path, tmp_path: Path):
    write_csv(root, SAID, SPLITS)
    shutil.copytree(root, tmp_path / "other" / "own")
    first, other = read_custom(str(root)), read_custom(str(tmp_path / "other" / "own"))
    assert first.name != other.name
    assert re.fullmatch(r"own-[0-9a-f]{6}", first.name)
    assert first.title == other.title == "own"


def test_the_examples_of_the_documentation_are_read(tmp_path: Path):
    section = (ROOT / "docs/data.md").read_text().partition("### Caption formats")[2].partition("### Splits")[0]
    examples = re.findall(r"```\w*\n(.*?)```", section, flags=re.DOTALL)
    said = {
        "beach.jpg": ["Two people walk on a beach.", "A couple, at sunset."],
        "dog.jpg": ["A dog runs."],
        "street.jpg": ["Cars in a street."],
    }
    for name, text in zip(["captions.csv", "captions.jsonl", "captions.token"], examples, strict=True):
        (tmp_path / name).write_text(text)
        captions = read_captions(tmp_path / name).captions
        assert captions["beach.jpg"]
        assert captions == {image: said[image][: len(sentences)] for image, sentences in captions.items()}


def test_images_without_captions_and_captions_without_images_are_counted_and_may_be_skipped(root: Path):
    write_csv(root, {**SAID, "b.jpg": [""]}, SPLITS)
    (root / "images/d.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of .*b\.jpg.*dataset\.skip_missing=true"):
        read_custom(str(root))
    dataset = read_custom(str(root), skip_missing=True)
    assert names(dataset) == {"train": ["sub/a.jpg"], "val": ["c.png"], "test": []}
    assert "skipped images without a caption: 1 of 4 (b.jpg)" in dataset.notes


class Image:
    """Stands for `datasets.Image`: photographs are decoded or bytes."""

    def __init__(self, decode: bool = True):
        self.decode = decode


class Rows:
    """Stands for `datasets.Dataset`, in what is used of it."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]):
        self.rows, self.features = rows, features

    def cast_column(self, name: str, feature: Image) -> "Rows":
        assert not feature.decode
        return Rows(self.rows, {**self.features, name: feature})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert all(not feature.decode for feature in self.features.values() if isinstance(feature, Image))
        return (dict(row) for row in self.rows)


def picture(color: int) -> bytes:
    file = io.BytesIO()
    Pictures.new("RGB", (8, 8), (color, 9, 9)).save(file, "png")
    return file.getvalue()


def photographs(*colors: int) -> Rows:
    rows = [
        {"image": {"bytes": picture(color), "path": None}, "caption_0": f"A dog {color}", "caption_1": "It barks"}
        for color in colors
    ]
    return Rows(rows, {"image": Image(), "caption_0": None, "caption_1": None})


def test_photographs_and_captions_are_written_by_split(tmp_path: Path):
    root = write_rows({"train": photographs(1, 2), "validation": photographs(3), "test": photographs(4)}, tmp_path)
    dataset = read_custom(str(root))
    assert {split: [[c.written for c in e.captions] for e in part] for split, part in dataset.splits.items()} == {
        "train": [["A dog 1", "It barks"], ["A dog 2", "It barks"]],
        "val": [["A dog 3", "It barks"]],
        "test": [["A dog 4", "It barks"]],
    }
    assert Path(dataset.split("test")[0].path).read_bytes() == picture(4)
    again = write_rows({"train": photographs(1, 2), "validation": photographs(3), "test": photographs(4)}, tmp_path)
    assert [again] == list((tmp_path / "data_sets").iterdir()) == [root]


def test_rows_of_one_split_are_split_as_those_of_a_file(tmp_path: Path):
    sizes = []
    for rows in (photographs(*range(30)), {"train": photographs(*range(30))}):
        dataset = read_custom(str(write_rows(rows, tmp_path)))
        sizes.append([len(dataset.split(split)) for split in ("train", "val", "test")])
    assert sizes[0] == sizes[1]
    assert min(sizes[0]) > 0


def test_a_photograph_of_several_rows_is_one_image_and_a_column_of_splits_counts(tmp_path: Path):
    rows = [
        {"photo": {"bytes": picture(color), "path": None}, "text": f"Caption {number}", "split": split}
        for number, (color, split) in enumerate([(1, "train"), (1, "train"), (2, "val"), (3, "test")])
    ]
    dataset = read_custom(str(write_rows(Rows(rows, {"photo": Image(), "text": None, "split": None}), tmp_path)))
    assert [caption.written for caption in dataset.split("train")[0].captions] == ["Caption 0", "Caption 1"]
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 1, "val": 1, "test": 1}


def test_the_first_column_of_photographs_counts_and_others_are_left_out(tmp_path: Path):
    mask, photo = ({"bytes": picture(color), "path": None} for color in (2, 1))
    rows = [{"mask": mask, "photo": photo, "text": "A dog"}]
    root = write_rows(Rows(rows, {"photo": Image(), "mask": Image(), "text": None}), tmp_path)
    assert [path.read_bytes() for path in (root / "images").iterdir()] == [picture(1)]
    assert json.loads((root / "captions.jsonl").read_text()).keys() == {"image", "text"}


def test_a_photograph_may_be_a_file_and_a_name_stays_one(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(picture(1))
    rows = [{"image": {"bytes": None, "path": str(tmp_path / "a.png")}, "text": "A dog"}]
    root = write_rows(Rows(rows, {"image": Image(), "text": None}), tmp_path)
    assert [path.read_bytes() for path in (root / "images").iterdir()] == [picture(1)]
    names = Rows([{"file_name": "a.png", "text": "A dog"}], {"file_name": None, "text": None})
    assert '"file_name": "a.png"' in (write_rows(names, tmp_path) / "captions.jsonl").read_text()
