import hashlib
import os
import unicodedata
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

from showattendtell.readers.assembly import (
    assemble,
    check_images,
    drop_unreadable,
    hash_fraction,
    split_by_hash,
)
from showattendtell.text.parsing import CaptionFile
from showattendtell.types import Caption, Dataset, Example


def said(captions: dict[str, list[str]], **message: dict) -> CaptionFile:
    return CaptionFile("test", captions, **{"split_of": {"a.jpg": "train"}, **message})


def test_examples_hold_tokenized_captions_and_the_path_of_the_image():
    file = said({"a.jpg": [" A dog .\r", "It barks !"], "b.jpg": ["A cat"]}, split_of={"a.jpg": "val"})
    captions = (Caption(("a", "dog"), written="A dog ."), Caption(("it", "barks"), written="It barks !"))
    examples = {"val": (Example("a.jpg", str(Path("folder", "a.jpg")), captions),)}
    assert assemble("dogs", file, Path("folder"), 5) == Dataset("dogs", examples)


def test_captions_beyond_the_number_and_without_words_are_dropped_and_counted():
    dataset = assemble("letters", said({"a.jpg": ["a", "...", *"bcdefg", ""]}), Path(), captions_per_image=5)
    assert [caption.words for caption in dataset.split("train")[0].captions] == [(letter,) for letter in "abcde"]
    assert dataset.notes == (
        "dropped captions without a word: 2",
        "dropped captions beyond 5 of an image: 2",
    )


@pytest.mark.parametrize(
    "name", ["..", "/a.jpg", "../a.jpg", "b/../../a.jpg", "C:/a.jpg", r"\a.jpg", r"..\a.jpg", "a\0b"]
)
def test_a_name_that_leads_out_of_the_folder_is_one_in_it(name: str):
    [example] = assemble("dogs", said({name: ["A dog ."]}, split_of={name: "train"}), Path("folder"), 5).examples()
    assert os.path.normpath(f"/{example.path}/a").startswith("/folder/")


@pytest.mark.parametrize(
    "name", ["a.jpg", r"a\b.jpg", "at 10:/a.jpg", "b//a.jpg", "b/./a.jpg", "..a/b...jpg", "é:a.jpg"]
)
def test_another_name_is_kept(name: str):
    [example] = assemble("dogs", said({name: ["A dog ."]}, split_of={name: "train"}), Path("folder"), 5).examples()
    assert (example.image, example.path) == (name, f"folder/{name}")


NAMES = [f"{number}.jpg" for number in range(2000)]


@pytest.mark.parametrize("name", ["a.jpg", "", "é/ü.png"])
def test_a_name_s_place_is_the_beginning_of_its_sha_256(name: str):
    exact = Fraction(int(hashlib.sha256(name.encode()).hexdigest(), 16), 2**256)
    assert 0 <= exact - Fraction(hash_fraction(name)) < Fraction(1, 2**53)


def test_the_shares_are_about_as_large_as_requested_and_lose_no_image():
    split_of = split_by_hash(NAMES, {"val": 0.1, "test": 0.2})
    assert list(split_of) == NAMES
    for split, share in {"train": 0.7, "val": 0.1, "test": 0.2}.items():
        assert abs(list(split_of.values()).count(split) - share * 2000) < 4 * (2000 * share * (1 - share)) ** 0.5


@given(some.sets(some.sampled_from(NAMES), min_size=300))
def test_an_image_stays_in_its_split_whatever_others_there_are(chosen: set[str]):
    everywhere = split_by_hash(NAMES, {"val": 0.1, "test": 0.1})
    assert split_by_hash(sorted(chosen), {"val": 0.1, "test": 0.1}).items() <= everywhere.items()


def drawn_example(folder: Path, name: str, shade: int) -> Example:
    """An image of one shade, and a caption."""
    Image.fromarray(np.full((8, 8, 3), shade, dtype=np.uint8)).save(folder / name)
    return Example(name, str(folder / name), (Caption(("a", "dog", "runs")),))


def test_images_that_break_off_are_left_out_of_the_splits_requested(tmp_path: Path):
    good, bad = (drawn_example(tmp_path, name, 9) for name in ("good.png", "bad.png"))
    Path(bad.path).write_bytes(Path(good.path).read_bytes()[:40])
    test = (bad._replace(image="as bad.png"),)
    kept = drop_unreadable(Dataset("own", {"train": (good, bad), "test": test}), ["train"])
    assert kept.splits == {"train": (good,), "test": test}


@pytest.mark.parametrize(("listed", "stored"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_an_image_whose_name_is_spelled_otherwise_on_disk_is_found(tmp_path: Path, listed: str, stored: str):
    """Both names look the same: é is one character in the one, e and an accent in the other."""
    on_disk = drawn_example(tmp_path, unicodedata.normalize(stored, "café.png"), 1)
    name = unicodedata.normalize(listed, "café.png")
    example = Example(name, str(tmp_path / name), on_disk.captions)
    other = drawn_example(tmp_path, "b.png", 2)
    checked_images = check_images(Dataset("own", {"train": (example, other)}), False, tmp_path)
    assert [found.image for found in checked_images.split("train")] == [name, "b.png"]
    assert [found.path for found in checked_images.split("train")] == [on_disk.path, other.path]
