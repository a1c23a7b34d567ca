"""Generated captions in place of the reference captions of the training images."""

from pathlib import Path

import pytest

from showattendtell.data.assembly import assemble, map_captions
from showattendtell.data.parsing import CaptionFile
from showattendtell.data.tokenizers import CharacterTokenizer, PlainTokenizer
from showattendtell.errors import UserError
from showattendtell.extensions.distillation.captions import with_generated
from showattendtell.types import Caption, Dataset, Example


def test_generated_captions_of_several_files_take_the_place_of_references_in_training(tmp_path: Path):
    (tmp_path / "1.json").write_text('{"captions": {"a.jpg": "A cat.", "b.jpg": "x"}, "references": {}}')
    (tmp_path / "2.csv").write_text("image,caption\na.jpg,It purrs\na.jpg,...\n")
    captions = {"a.jpg": ["A dog"], "b.jpg": ["A bird"]}
    file = CaptionFile("test", captions, splits={"train": ["a.jpg"], "val": ["b.jpg"]})
    dataset = map_captions(assemble("pets", file, Path(), 5), lambda _, caption: caption._replace(language="en"))
    files = [str(tmp_path / "1.json"), str(tmp_path / "2.csv")]

    replaced = with_generated(dataset, PlainTokenizer(), files)
    assert replaced.split("val") == dataset.split("val")
    [example] = replaced.split("train")
    assert example.captions == (
        Caption(("a", "cat"), (), "A cat.", "en", ("a", "cat")),
        Caption(("it", "purrs"), (), "It purrs", "en", ("it", "purrs")),
    )
    [added] = with_generated(dataset, PlainTokenizer(), str(tmp_path / "*.json"), keep_references=True).split("train")
    assert added.captions == (*dataset.split("train")[0].captions, example.captions[0])
    [letters] = with_generated(dataset, CharacterTokenizer(), files[0]).split("train")
    assert letters.captions[0][:3] == (tuple("A▁cat."), (), "A cat.")


def test_generated_captions_for_several_languages_are_refused(tmp_path: Path):
    captions = (Caption(("dog",), language="en"), Caption(("hund",), language="de"))
    dataset = Dataset("pets", {"train": (Example("a.jpg", "", captions),)})
    with pytest.raises(UserError, match="replaces captions in one language, and pets has 2"):
        with_generated(dataset, PlainTokenizer(), str(tmp_path))
