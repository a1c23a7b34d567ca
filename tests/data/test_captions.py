from pathlib import Path

import pytest

from showattendtell.data.captions import assemble
from showattendtell.errors import UserError
from showattendtell.records import Caption, Example


def test_examples_hold_tokenized_captions_and_the_path_of_the_image():
    examples = assemble(
        {"a.jpg": [" A dog .\r", "It barks !"]}, {"val": ["a.jpg"]}, Path("folder"), captions_per_image=5
    )
    captions = (Caption(("a", "dog"), written="A dog ."), Caption(("it", "barks"), written="It barks !"))
    assert examples == {"val": (Example("a.jpg", str(Path("folder", "a.jpg")), captions),)}


def test_captions_beyond_the_number_are_dropped():
    examples = assemble({"a.jpg": list("abcdefg")}, {"train": ["a.jpg"]}, Path(), captions_per_image=5)
    assert [caption.words for caption in examples["train"][0].captions] == [("a",), ("b",), ("c",), ("d",), ("e",)]


@pytest.mark.parametrize("sentences", [{}, {"a.jpg": []}, {"a.jpg": ["..."]}, {"b.jpg": ["A dog ."]}])
def test_an_image_without_a_caption_is_told(sentences: dict[str, list[str]]):
    with pytest.raises(UserError, match=r"image a.jpg stands in a split list but has no caption"):
        assemble(sentences, {"train": ["a.jpg"]}, Path(), 5)
