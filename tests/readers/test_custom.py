"""A user's own data set in a table."""

import csv
import re
import shutil
from pathlib import Path

import pytest
from repository import ROOT

from showattendtell.errors import UserError
from showattendtell.readers.assembly import split_by_hash
from showattendtell.readers.custom import read_custom
from showattendtell.readers.formats import read_captions
from showattendtell.types import Dataset

DOCS = ROOT / "docs" / "data.md"
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


def test_a_table_gives_its_images_captions_and_splits(root: Path):
    write_csv(root, SAID, SPLITS)
    dataset = read_custom(str(root), name="own")
    assert (dataset.name, names(dataset), dataset.notes) == ("own", SPLITS, ())
    for example in dataset.examples():
        assert example.path == str(root / "images" / example.image)
        assert [caption.written for caption in example.captions] == SAID[example.image]


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


def documented() -> dict[str, str]:
    """The example files of the page, which stand there in this order."""
    names = ["captions.csv", "captions.jsonl", "captions.token"]
    section = DOCS.read_text().partition("### Caption formats")[2].partition("### Splits")[0]
    assert [name for name in re.findall(r"`([\w.]+)`", section) if name in names] == names
    return dict(zip(names, re.findall(r"```\w*\n(.*?)```", section, flags=re.DOTALL), strict=True))


@pytest.mark.parametrize("file", documented())
def test_the_examples_of_the_documentation_are_read(tmp_path: Path, file: str):
    (tmp_path / file).write_text(documented()[file])
    said = {
        "beach.jpg": ["Two people walk on a beach.", "A couple, at sunset."],
        "dog.jpg": ["A dog runs."],
        "street.jpg": ["Cars in a street."],
    }
    captions = read_captions(tmp_path / file).captions
    assert "beach.jpg" in captions
    for image, sentences in captions.items():
        assert sentences
        assert sentences == said[image][: len(sentences)]


def test_images_without_captions_and_captions_without_images_are_counted_and_may_be_skipped(root: Path):
    write_csv(root, {**SAID, "b.jpg": [""]}, SPLITS)
    (root / "images/d.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of .*b\.jpg.*dataset\.skip_missing=true"):
        read_custom(str(root))
    dataset = read_custom(str(root), skip_missing=True)
    assert names(dataset) == {"train": ["sub/a.jpg"], "val": ["c.png"], "test": []}
    assert "skipped images without a caption: 1 of 4 (b.jpg)" in dataset.notes
