"""Generated captions in the place of reference captions."""

from pathlib import Path

import pytest

from showattendtell.errors import UserError
from showattendtell.readers.assembly import assemble
from showattendtell.readers.distillation import with_generated
from showattendtell.text.parsing import CaptionFile
from showattendtell.text.tokenizers import CharacterTokenizer, PlainTokenizer
from showattendtell.types import Caption, Dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    (tmp_path / "1.json").write_text('{"captions": {"a.jpg": "A cat.", "b.jpg": "x"}, "references": {}}')
    (tmp_path / "2.csv").write_text("image,caption\na.jpg,It purrs\na.jpg,...\n")
    captions = {"a.jpg": ["A dog"], "b.jpg": ["A bird"]}
    file = CaptionFile("test", captions, split_of={"a.jpg": "train", "b.jpg": "val"})
    return assemble("pets", file, Path(), 5)


def test_generated_captions_of_several_files_take_the_place_of_references_in_training(dataset: Dataset, tmp_path: Path):
    files = [str(tmp_path / "1.json"), str(tmp_path / "2.csv")]
    replaced = with_generated(dataset, PlainTokenizer(), files)
    assert replaced.split("val") == dataset.split("val")
    [example] = replaced.split("train")
    assert example.captions == (
        Caption(("a", "cat"), (), "A cat.", ("a", "cat")),
        Caption(("it", "purrs"), (), "It purrs", ("it", "purrs")),
    )
    [added] = with_generated(dataset, PlainTokenizer(), str(tmp_path / "*.json"), keep_references=True).split("train")
    assert added.captions == (*dataset.split("train")[0].captions, example.captions[0])
    [letters] = with_generated(dataset, CharacterTokenizer(), files[0]).split("train")
    assert letters.captions[0][:3] == (tuple("A▁cat."), (), "A cat.")
    assert with_generated(dataset, PlainTokenizer()) is dataset


def test_a_file_without_a_caption_of_a_training_image_is_reported(dataset: Dataset, tmp_path: Path):
    (tmp_path / "3.json").write_text('{"captions": {"a.jpg": " ", "b.jpg": "x"}, "references": {}}')
    with pytest.raises(UserError, match=r"no caption or an empty one of 1 of 1 training images \(a\.jpg\)"):
        with_generated(dataset, PlainTokenizer(), str(tmp_path / "3.json"))
