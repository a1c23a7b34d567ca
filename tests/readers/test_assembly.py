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

from showattendtell.errors import UserError
from showattendtell.readers.assembly import (
    assemble,
    check_images,
    drop_unreadable,
    hash_fraction,
    split_by_hash,
    with_generated,
)
from showattendtell.text.parsing import CaptionFile
from showattendtell.text.tokenizers import CharacterTokenizer, PlainTokenizer
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
    assert dataset.notes == ("dropped captions without a word: 2", "dropped captions beyond 5 of an image: 2")


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


@pytest.fixture
def pets(tmp_path: Path) -> Dataset:
    (tmp_path / "1.json").write_text('{"captions": {"a.jpg": "A cat.", "b.jpg": "x"}, "references": {}}')
    (tmp_path / "2.csv").write_text("image,caption\na.jpg,It purrs\na.jpg,...\n")
    captions = {"a.jpg": ["A dog"], "b.jpg": ["A bird"]}
    file = CaptionFile("test", captions, split_of={"a.jpg": "train", "b.jpg": "val"})
    return assemble("pets", file, Path(), 5)


def test_generated_captions_of_several_files_take_the_place_of_references_in_training(pets: Dataset, tmp_path: Path):
    files = [str(tmp_path / "1.json"), str(tmp_path / "2.csv")]
    replaced = with_generated(pets, PlainTokenizer(), files)
    assert replaced.split("val") == pets.split("val")
    [example] = replaced.split("train")
    assert example.captions == (
        Caption(("a", "cat"), (), "A cat.", ("a", "cat")),
        Caption(("it", "purrs"), (), "It purrs", ("it", "purrs")),
    )
    [added] = with_generated(pets, PlainTokenizer(), str(tmp_path / "*.json"), keep_references=True).split("train")
    assert added.captions == (*pets.split("train")[0].captions, example.captions[0])
    [letters] = with_generated(pets, CharacterTokenizer(), files[0]).split("train")
    assert letters.captions[0][:3] == (tuple("A▁cat."), (), "A cat.")
    assert with_generated(pets, PlainTokenizer()) is pets


def test_a_file_without_a_caption_of_a_training_image_is_reported(pets: Dataset, tmp_path: Path):
    (tmp_path / "3.json").write_text('{"captions": {"a.jpg": " ", "b.jpg": "x"}, "references": {}}')
    with pytest.raises(UserError, match=r"no caption or an empty one of 1 of 1 training images \(a\.jpg\)"):
        with_generated(pets, PlainTokenizer(), str(tmp_path / "3.json"))
