"""Captions without photographs."""

from pathlib import Path

import pytest
from repository import SHARED

from showattendtell.data.custom import read_text
from showattendtell.data.parsing import read_list
from showattendtell.datamodules.datasets import open_source
from showattendtell.errors import UserError
from showattendtell.extensions.language_model.encoder import NoEncoder
from showattendtell.features.extract import Extraction
from showattendtell.models.encoder import Encoder
from showattendtell.types import Dataset


def write_captions(folder: Path, images: list[str]) -> None:
    lines = [f"{image}#{number}\tCaption {number} of it .\n" for image in images for number in range(2)]
    (folder / "captions.token").write_text("".join(lines))


def images_of(dataset: Dataset) -> set[str]:
    return {example.image for example in dataset.examples()}


def test_images_of_other_lists_are_left_out_by_their_number_or_stem(tmp_path: Path):
    own = [f"{number}.jpg" for number in range(100, 200)]
    write_captions(tmp_path, [*own, "dog_1.jpg", "dog_2.jpg"])
    (tmp_path / "val.txt").write_text("103_a1b2.jpg\n99_c3.jpg\n")
    (tmp_path / "test.txt").write_text("104_00.jpg\n10_105.jpg\ndog_2\n")
    dataset = read_text(str(tmp_path), "captions.token", ["val.txt", "test.txt"], val=0.2)
    assert images_of(dataset) == {*own, "dog_1.jpg"} - {"103.jpg", "104.jpg"}
    assert dataset.notes[0] == "images left out by dataset.exclude: 3"
    assert images_of(read_text(str(tmp_path), "captions.token", val=0.2)) == {*own, "dog_1.jpg", "dog_2.jpg"}


@pytest.mark.skipif(not (SHARED / "flickr30k").is_dir(), reason="needs the captions of Flickr30k in ../shared")
def test_no_validation_or_test_image_of_flickr8k_is_left_in_flickr30k():
    lists = [str(SHARED / f"flickr8k/Flickr_8k.{split}Images.txt") for split in ("dev", "test")]
    ids = {name.partition("_")[0] for file in lists for name in read_list(Path(file))}
    dataset = read_text(str(SHARED / "flickr30k"), "results_20130124.token", lists)
    left = {image.removesuffix(".jpg") for image in images_of(dataset)}
    assert len(ids) == 2000
    assert not left & ids
    assert len(left) == 31_783 - 2_000
    assert dataset.notes[0] == "images left out by dataset.exclude: 2,000"
    assert {len(example.captions) for example in dataset.examples()} == {5}


def test_splits_are_those_of_the_file_or_a_hash_and_lines_are_captions(tmp_path: Path):
    (tmp_path / "own.csv").write_text("image,caption,split\na.jpg,A dog.,train\nb.jpg,A cat.,val\n")
    dataset = read_text(str(tmp_path), "own.csv")
    assert {split: [example.image for example in each] for split, each in dataset.splits.items()} == {
        "train": ["a.jpg"],
        "val": ["b.jpg"],
    }
    (tmp_path / "lines.txt").write_text("".join(f"Sentence number {number}.\n" for number in range(100)))
    dataset = read_text(str(tmp_path), "lines.txt", val=0.1, test=0.1)
    assert dataset.splits.keys() == {"train", "val", "test"}
    assert {example.captions[0].words for example in dataset.examples()} == {
        ("sentence", "number", str(number)) for number in range(100)
    }


def test_no_photograph_is_read_and_no_grid_is_stored(tmp_path: Path):
    write_captions(tmp_path, [f"{number}.jpg" for number in range(60)])
    dataset = read_text(str(tmp_path), "captions.token", val=0.2)
    source, readable = open_source(dataset, NoEncoder(), tmp_path / "features", Extraction(views=2))
    assert readable is dataset
    assert source(dataset.split("train"), "drawn")([3, 1], (2, 5)).tolist() == [[[0.0]], [[0.0]]]
    assert not (tmp_path / "features").exists()
    encoder = Encoder("test_efficientnet", "last", "random", size=64)
    with pytest.raises(UserError, match="captions has captions without photographs; give encoder=none"):
        open_source(dataset, encoder, tmp_path / "features", Extraction())
