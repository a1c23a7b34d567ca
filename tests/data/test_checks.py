from pathlib import Path

import numpy as np
from PIL import Image

from showattendtell.data.checks import check_up
from showattendtell.types import Caption, Dataset, Example


def example(folder: Path, name: str, shade: int, *sentences: str) -> Example:
    """An image of one shade, and its captions."""
    Image.fromarray(np.full((8, 8, 3), shade, dtype=np.uint8)).save(folder / name)
    captions = tuple(Caption(tuple(sentence.split()), written=sentence) for sentence in sentences or ("a dog runs",))
    return Example(name, str(folder / name), captions)


def told(**splits: tuple[Example, ...]) -> list[str]:
    return check_up(Dataset("own", splits))


def test_nothing_is_told_of_a_sound_data_set(tmp_path: Path):
    assert told(train=(example(tmp_path, "a.png", 1), example(tmp_path, "b.png", 2))) == []


def test_a_photograph_in_two_splits_under_two_names_is_a_leak(tmp_path: Path):
    first, second, other = (
        example(tmp_path, name, shade) for name, shade in (("a.png", 1), ("b.png", 1), ("c.png", 2))
    )
    [note] = told(train=(first, other), test=(second,))
    assert note.startswith("1 photograph stands in more than one split under different names")
    assert note.endswith("a.png (train), b.png (test)")


def test_a_photograph_twice_in_one_split_is_told(tmp_path: Path):
    images = tuple(example(tmp_path, f"{number}.png", number // 2) for number in range(4))
    assert told(train=images) == ["2 photographs stand more than once in one split: 0.png = 1.png, ..."]


def test_captions_that_are_doubled_short_or_long_are_told(tmp_path: Path):
    odd = example(tmp_path, "a.png", 1, "a dog runs", "a dog runs", "dog", " ".join(["word"] * 31))
    notes = told(train=(odd, example(tmp_path, "b.png", 2)))
    assert notes == [
        "1 images with the same caption twice: a.png",
        "1 captions of fewer than 3 words, of a.png",
        "1 captions of more than 30 words, of a.png",
    ]


def test_an_image_that_is_not_on_disk_is_passed_over(tmp_path: Path):
    gone = Example("gone.png", str(tmp_path / "gone.png"), (Caption(("a", "dog", "runs")),))
    assert told(train=(gone, example(tmp_path, "a.png", 1))) == []
