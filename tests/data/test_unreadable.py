from pathlib import Path

import pytest
from costly import jpeg_with_scans
from PIL import Image

from showattendtell.data.checks import SHOWN, drop_unreadable
from showattendtell.types import Caption, Dataset, Example


def example(path: Path) -> Example:
    return Example(path.name, str(path), (Caption(("a", "scene")),))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two images a split, the second of each broken."""
    for split in ("train", "val", "test"):
        Image.effect_noise((64, 64), 50).save(tmp_path / f"{split}-good.jpg")
        content = (tmp_path / f"{split}-good.jpg").read_bytes()
        (tmp_path / f"{split}-bad.jpg").write_bytes(content[: len(content) // 2])
    splits = ("train", "val", "test")
    files = {split: (tmp_path / f"{split}-good.jpg", tmp_path / f"{split}-bad.jpg") for split in splits}
    return Dataset("six", {split: tuple(map(example, both)) for split, both in files.items()}, notes=("read",))


def names(dataset: Dataset) -> dict[str, list[str]]:
    return {split: [example.image for example in examples] for split, examples in dataset.splits.items()}


def test_images_that_break_off_are_left_out_of_the_splits_asked_for(dataset: Dataset):
    assert names(drop_unreadable(dataset, ["train", "val"])) == {
        "train": ["train-good.jpg"],
        "val": ["val-good.jpg"],
        "test": ["test-good.jpg", "test-bad.jpg"],
    }


def test_a_note_tells_what_was_left_out_and_why(dataset: Dataset):
    first, note = drop_unreadable(dataset, ["train"]).notes
    assert first == "read"
    assert "1 image" in note
    assert "train-bad.jpg" in note
    assert "truncated" in note


def test_images_that_take_too_long_to_decode_are_left_out(dataset: Dataset):
    bad = Path(dataset.splits["train"][1].path)
    bad.write_bytes(jpeg_with_scans(4_000))
    readable = drop_unreadable(dataset, ["train"])
    assert names(readable)["train"] == ["train-good.jpg"]
    assert "has 4,000 scans and takes too long to decode" in readable.notes[-1]


def test_of_many_only_the_first_are_told_one_by_one(dataset: Dataset, tmp_path: Path):
    gone = tuple(example(tmp_path / f"gone-{number}.jpg") for number in range(SHOWN + 3))
    readable = drop_unreadable(dataset._replace(splits={**dataset.splits, "train": gone}), ["train"])
    assert names(readable)["train"] == []
    note = readable.notes[-1]
    assert note.count("does not exist") == SHOWN
    assert note.endswith("and 3 more")


def test_a_data_set_whose_images_can_all_be_read_is_left_as_it_is(dataset: Dataset):
    good = dataset.without(["train-bad.jpg"])
    assert drop_unreadable(good, ["train"]) == good
