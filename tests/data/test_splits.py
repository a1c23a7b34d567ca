from pathlib import Path

import pytest

from showattendtell.data.formats import CaptionFile
from showattendtell.data.splits import assemble, join_restval
from showattendtell.errors import UserError
from showattendtell.types import Caption, Dataset, Example


def said(captions: dict[str, list[str]], **told: dict) -> CaptionFile:
    return CaptionFile("test", captions, **{"splits": {"train": ["a.jpg"]}, **told})


def test_examples_hold_tokenized_captions_and_the_path_of_the_image():
    file = said({"a.jpg": [" A dog .\r", "It barks !"], "b.jpg": ["A cat"]}, splits={"val": ["a.jpg"]})
    captions = (Caption(("a", "dog"), written="A dog ."), Caption(("it", "barks"), written="It barks !"))
    examples = {"val": (Example("a.jpg", str(Path("folder", "a.jpg")), captions),)}
    assert assemble("dogs", file, Path("folder"), 5) == Dataset("dogs", examples)


def test_an_image_may_be_in_a_folder_of_its_own():
    file = said({"a.jpg": ["A dog ."]}, folders={"a.jpg": "val2014"})
    assert assemble("dogs", file, Path("folder"), 5).split("train")[0].path == str(Path("folder", "val2014", "a.jpg"))


def test_captions_beyond_the_number_and_without_words_are_dropped_and_counted():
    dataset = assemble("letters", said({"a.jpg": ["a", "...", *"bcdefg", ""]}), Path(), captions_per_image=5)
    assert [caption.words for caption in dataset.split("train")[0].captions] == [(letter,) for letter in "abcde"]
    assert dataset.notes == (
        "dropped captions without a word: 2",
        "dropped captions beyond 5 of an image: 2",
    )


@pytest.mark.parametrize("sentences", [{}, {"a.jpg": []}, {"a.jpg": ["..."]}, {"b.jpg": ["A dog ."]}])
def test_an_image_without_a_caption_is_told(sentences: dict[str, list[str]]):
    with pytest.raises(UserError, match=r"image a.jpg stands in a split but has no caption"):
        assemble("dogs", said(sentences), Path(), 5)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/a.jpg",
        "../a.jpg",
        "b/../../a.jpg",
        "b/..",
        "C:/a.jpg",
        r"C:\a.jpg",
        r"\a.jpg",
        r"..\a.jpg",
        "a\0b",
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_told(name: str):
    with pytest.raises(UserError, match=r"is no place within folder; name images by their path in that folder"):
        assemble("dogs", said({name: ["A dog ."]}, splits={"train": [name]}), Path("folder"), 5)


@pytest.mark.parametrize("name", ["b/a.jpg", "a..b.jpg", "..a.jpg", "...", ".a.jpg", "a b:c.jpg"])
def test_other_names_are_taken_as_they_are(name: str):
    file = said({name: ["A dog ."]}, splits={"train": [name]})
    assert assemble("dogs", file, Path("folder"), 5).split("train")[0].path == f"folder/{name}"


def test_restval_stands_behind_train_when_it_joins():
    file = said({}, splits={"restval": ["c", "d"], "val": ["b"], "train": ["a"]})
    assert join_restval(file).splits == {"val": ["b"], "train": ["a", "c", "d"]}
    assert join_restval(said({})) == said({})
