"""A caption as a moving picture: how long each word stands, where the light is, where the words are."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont, ImageSequence
from shown import PEAKS, gated, peaked

from showattendtell.errors import UserError
from showattendtell.types import Box
from showattendtell.visualization.animation import LINE, MARGIN, WHOLE, WORD, draw_animation, place_words

GREY = Image.new("RGB", (300, 200), (200, 200, 200))
SEEN = Box(75, 0, 225, 200)


def animate(path: Path) -> list[Image.Image]:
    [caption, *_] = gated().captions
    draw_animation(GREY, ["a", "dog", "runs", "fast"], caption.attention, caption.gates, SEEN, path)
    with Image.open(path) as picture:
        assert picture.info["loop"] == 0
        return [frame.copy().convert("RGB") for frame in ImageSequence.Iterator(picture)]


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_the_photograph_comes_first_and_then_each_word_with_its_map(suffix: str, tmp_path: Path):
    first, *frames = animate(tmp_path / f"new/a.{suffix}")
    assert np.asarray(first)[:200].min() > 190
    assert len(frames) == 4
    for frame, (row, column) in zip(frames, PEAKS, strict=True):
        light = np.asarray(frame.convert("L"), dtype=float)[:200]
        y, x = np.unravel_index(light.argmax(), light.shape)
        assert 75 + 50 * column <= x <= 75 + 50 * (column + 1)
        assert 200 / 3 * row <= y <= 200 / 3 * (row + 1)
        assert light[:, :70].max() < 50


def test_each_word_is_shown_for_as_long(tmp_path: Path):
    animate(tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as picture:
        times = [frame.info["duration"] for frame in ImageSequence.Iterator(picture)]
    assert times == [WHOLE, *[WORD] * 4]


def test_the_present_word_is_marked(tmp_path: Path):
    _, *frames = animate(tmp_path / "a.webp")
    yellow = [((np.asarray(frame)[200:, :, 2] < 140) & (np.asarray(frame)[200:, :, 0] > 200)) for frame in frames]
    middles = [np.nonzero(marked)[1].mean() for marked in yellow]
    assert middles == sorted(middles)
    assert all(later - before > 10 for before, later in pairwise(middles))


def test_words_are_placed_in_lines_that_hold_them():
    font = ImageFont.load_default(16)
    words = ["two", "brown", "dogs", "run", "x" * 80, "end"]
    placed, height = place_words(words, font, 120)
    assert [place.word for place in placed] == words
    assert placed[0][1:] == (MARGIN, MARGIN)
    assert all(place.x + font.getlength(place.word) <= 120 - MARGIN for place in placed if len(place.word) < 80)
    assert all(a.y < b.y or a.x + font.getlength(a.word) < b.x for a, b in pairwise(placed))
    assert height == placed[-1].y + LINE + MARGIN


def test_a_moving_picture_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/a.gif cannot be written .*; set output to another folder"):
        draw_animation(GREY, ["a"], peaked(3, 3, 0, 0)[np.newaxis], np.ones(1), SEEN, tmp_path / "file" / "a.gif")


def test_a_caption_without_words_is_the_photograph_alone(tmp_path: Path):
    draw_animation(GREY, [], np.zeros((1, 3, 3)), np.ones(1), SEEN, tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as picture:
        assert picture.n_frames == 1
