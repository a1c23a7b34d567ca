import json
from pathlib import Path

import pytest
from PIL import Image
from repository import SHARED

from showattendtell.errors import UserError
from showattendtell.readers.flickr import read_flickr8k, read_flickr30k
from showattendtell.types import Dataset, fingerprint

FOLDER = SHARED / "flickr8k"
SPLIT_LISTS = {
    split: f"Flickr_8k.{name}Images.txt" for split, name in {"train": "train", "val": "dev", "test": "test"}.items()
}
SPLITS = {"train": ["1_a.jpg", "2_b.jpg", "3_c.jpg"], "val": ["4_d.jpg"], "test": ["5_e.jpg"]}
SENTENCES = {
    image: [f"Image {image} , sentence {number} ." for number in range(5)]
    for names in SPLITS.values()
    for image in names
}


def draw_images(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(SENTENCES):
        Image.new("RGB", (30, 20), (40 * number, 90, 200)).save(folder / image)


def write_texts(folder: Path) -> None:
    """The texts of the distribution: all captions in a file, and a list of image names for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{image}#{n}\t{text}\n" for image, texts in SENTENCES.items() for n, text in enumerate(texts)]
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    for split, file in SPLIT_LISTS.items():
        (folder / file).write_text("".join(f"{image}\n" for image in SPLITS[split]))


def write_karpathy(folder: Path) -> None:
    entries = [
        {"filename": image, "split": split, "sentences": [{"raw": text} for text in SENTENCES[image]]}
        for split, images in SPLITS.items()
        for image in images
    ]
    (folder / "dataset_flickr8k.json").write_text(json.dumps({"images": entries, "dataset": "flickr8k"}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    draw_images(tmp_path / "images")
    write_texts(tmp_path)
    write_karpathy(tmp_path)
    return tmp_path


def names(dataset: Dataset) -> dict[str, list[str]]:
    return {split: [example.image for example in examples] for split, examples in dataset.splits.items()}


def test_karpathy_s_json_gives_the_same_records(root: Path):
    distribution, karpathy = read_flickr8k(str(root)), read_flickr8k(str(root), captions="dataset_flickr8k.json")
    assert karpathy == distribution
    assert fingerprint(karpathy.examples()) == fingerprint(distribution.examples())


@pytest.mark.parametrize("images", ["images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"])
@pytest.mark.parametrize("texts", [".", "Flickr8k_text"])
def test_every_published_layout_is_found(tmp_path: Path, images: str, texts: str):
    draw_images(tmp_path / images)
    write_texts(tmp_path / texts)
    assert names(read_flickr8k(str(tmp_path))) == SPLITS


@pytest.mark.parametrize("allowed", [{"absent": ["2_b.jpg"]}, {"skip_unreadable": True}])
def test_an_absent_image_is_passed_over_with_a_note_where_that_is_allowed(root: Path, allowed: dict):
    (root / "images" / "2_b.jpg").unlink()
    dataset = read_flickr8k(str(root), **allowed)
    assert names(dataset) == {**SPLITS, "train": ["1_a.jpg", "3_c.jpg"]}
    [note] = dataset.notes
    assert note == "images captioned but not on disk, which are skipped: 1 (2_b.jpg)"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_real_distribution_lacks_one_image_and_has_five_captions_each():
    dataset = read_flickr8k(str(FOLDER))
    lists = {split: set((FOLDER / file).read_text().split()) for split, file in SPLIT_LISTS.items()}
    assert {split: len(images) for split, images in lists.items()} == {"train": 6000, "val": 1000, "test": 1000}
    for split, images in lists.items():
        assert {example.image for example in dataset.split(split)} == images - {"3050606344_af711c726c.jpg"}
    assert all(len(example.captions) == 5 for example in dataset.examples())
    assert len(dataset.examples()) == 7999


def write_flickr30k(root: Path, images: str = "flickr30k-images", texts: str = ".") -> Path:
    """As Flickr30k and its Entities are published: the lists have numbers, the captions and images `NUMBER.jpg`."""
    (root / images).mkdir(parents=True)
    (root / texts).mkdir(exist_ok=True)
    lines = [f"{number}.jpg#{n}\tSentence {n} of {number} .\n" for number in (11, 12, 13, 14) for n in range(5)]
    (root / texts / "results_20130124.token").write_text("".join(lines))
    for split, numbers in {"train": [13, 11], "val": [12], "test": [14]}.items():
        (root / texts / f"{split}.txt").write_text("".join(f"{number}\n" for number in numbers))
        for number in numbers:
            (root / images / f"{number}.jpg").touch()
    return root


@pytest.mark.parametrize("images", ["images", "flickr30k-images", "flickr30k_images", "Images"])
@pytest.mark.parametrize("texts", [".", "flickr30k"])
def test_flickr30k_has_numbers_in_its_lists_and_files_of_their_name(tmp_path: Path, images: str, texts: str):
    dataset = read_flickr30k(str(write_flickr30k(tmp_path, images, texts)))
    assert names(dataset) == {"train": ["13.jpg", "11.jpg"], "val": ["12.jpg"], "test": ["14.jpg"]}
    assert dataset.name == "flickr30k"
    example = dataset.split("val")[0]
    assert (example.path, len(example.captions)) == (str(tmp_path / images / "12.jpg"), 5)
    assert example.captions[4].words == ("sentence", "4", "of", "12")


SHARED_30K = FOLDER.with_name("flickr30k")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED_30K.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_real_flickr30k_has_its_splits_and_five_captions_each(tmp_path: Path):
    """Of its images only those are here that are Flickr8k's, which are `NUMBER_HASH.jpg` there."""
    (tmp_path / "images").mkdir()
    for file in (FOLDER / "images").iterdir():
        (tmp_path / "images" / f"{file.stem.partition('_')[0]}.jpg").symlink_to(file)
    for file in SHARED_30K.iterdir():
        (tmp_path / file.name).symlink_to(file)
    dataset = read_flickr30k(str(tmp_path), skip_unreadable=True, entities=str(FOLDER / "entities.zip"))
    counts = {split: len(examples) for split, examples in dataset.splits.items()}
    assert counts == {"train": 7559, "val": 247, "test": 284}
    [missing] = dataset.notes  # none of captions that Entities lacks
    assert missing.startswith("images captioned but not on disk, which are skipped: 23,693 ")
    assert {len(example.captions) for example in dataset.examples()} == {5}
    flickr8k = {example.image.partition("_")[0]: example for example in read_flickr8k(str(FOLDER)).examples()}
    numbers = ((example, Path(example.image).stem) for example in dataset.examples())
    shared = [(example, flickr8k[number]) for example, number in numbers if number in flickr8k]
    alike = [{c.words for c in ours.captions} & {c.words for c in theirs.captions} for ours, theirs in shared]
    assert len(list(filter(None, alike))) > 0.95 * 7999
    with pytest.raises(UserError, match=r"captioned but not on disk: 23,693"):
        read_flickr30k(str(tmp_path))
