"""What the commands that show models share, as far as it needs no model."""

from pathlib import Path

import pytest
from PIL import Image

from showattendtell.inference.loading import BUNDLED, note_about
from showattendtell.inference.pipeline import (
    caption_all,
    short_names,
)
from showattendtell.inference.predictions import evenly_spaced
from showattendtell.types import Example


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/first/best.ckpt"], ["first/best.ckpt"]),
        (["best.ckpt"], ["best.ckpt"]),
        (["runs/a/best.ckpt", "runs/b/best.ckpt"], ["a/best.ckpt", "b/best.ckpt"]),
        (["/x/soft/1/best.ckpt", "/x/hard/1/best.ckpt"], ["soft/1/best.ckpt", "hard/1/best.ckpt"]),
        (["a/best.ckpt", "x/a/best.ckpt"], ["a/best.ckpt", "x/a/best.ckpt"]),
        (["a/best.ckpt", "a/best.ckpt"], ["a/best.ckpt", "a/best.ckpt"]),
        (["a/best.ckpt", "./b.ckpt"], ["a/best.ckpt", "b.ckpt"]),
    ],
)
def test_checkpoints_are_named_by_the_shortest_distinct_part_of_their_paths(paths: list[str], names: list[str]):
    assert short_names(paths) == names


@pytest.mark.parametrize(
    ("number", "chosen"),
    [(4, [0, 2, 5, 7]), (1, [0]), (10, list(range(10))), (99, list(range(10))), (None, list(range(10)))],
)
def test_examples_are_taken_at_equal_distances(number: int | None, chosen: list[int]):
    examples = [Example(str(place), f"{place}.jpg", ()) for place in range(10)]
    assert [int(example.image) for example in evenly_spaced(examples, number)] == chosen


def test_only_the_bundled_model_has_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "mostly of people and dogs" in note_about(["runs/a/best.ckpt", BUNDLED])
    assert note_about(["runs/a/best.ckpt", "owner/flickr8k_soft"]) == ""
    (tmp_path / BUNDLED).mkdir()
    monkeypatch.chdir(tmp_path)
    assert note_about([BUNDLED]) == ""


class Silent:
    """A captioner that says nothing."""

    is_deterministic = True

    def describe(self, pictures: list[tuple[str, Image.Image]], inputs: object) -> list[None]:
        return [None] * len(pictures)


@pytest.fixture
def photographs(tmp_path: Path) -> list[str]:
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file in files:
        Image.new("RGB", (8, 8)).save(file)
    return [str(file) for file in files]


def test_a_file_that_cannot_be_read_keeps_its_number_and_is_reported(photographs: list[str]):
    Path(photographs[1]).write_text("no image")
    faults: list[str] = []
    assert [number for number, _ in caption_all([Silent()], list(map(str, photographs)), faults)] == [0, 2]
    [fault] = faults
    assert "1.png cannot be read (it is text)" in fault
