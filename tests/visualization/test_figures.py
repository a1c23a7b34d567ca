"""Curves of runs, and heatmaps on the photograph, as a figure and as an animation."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from browser_pages import captioned
from PIL import Image, ImageSequence
from sample_pages import PEAKS, gated, output
from slow_cases import slow_after

from showattendtell.images.reading import Preprocessing
from showattendtell.types import Box
from showattendtell.visualization.figures import (
    WHOLE,
    WORD,
    map_onto_photograph,
    read_metrics,
)

WIDTH, HEIGHT = 300, 200


def one_region(row: int, column: int) -> np.ndarray:
    weights = np.zeros((4, 4))
    weights[row, column] = 1
    return weights


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 3), (2, 1), (3, 3)])
def test_the_map_peaks_on_the_region_of_the_photograph_that_the_encoder_saw(row: int, column: int):
    seen = Preprocessing(resize=256, crop=224, mean=(0.5,), std=(0.5,)).crop_box(WIDTH, HEIGHT)
    light = map_onto_photograph(one_region(row, column), seen, WIDTH, HEIGHT)
    y, x = np.unravel_index(light.argmax(), light.shape)
    side = (seen.right - seen.left) / 4
    assert column * side <= x + 0.5 - seen.left <= (column + 1) * side
    assert row * side <= y + 0.5 - seen.top <= (row + 1) * side


def test_what_the_encoder_did_not_see_is_dark():
    seen = Box(50, 0, 250, 200)
    light = map_onto_photograph(np.ones((4, 4)), seen, WIDTH, HEIGHT)
    assert light.shape == (HEIGHT, WIDTH)
    assert not light[:, :50].any()
    assert not light[:, 250:].any()
    np.testing.assert_allclose(light[:, 50:250], 1, atol=1e-5)


def test_the_picture_has_the_photograph_and_a_panel_a_word(tmp_path: Path):
    photograph = Image.new("RGB", (WIDTH, HEIGHT), (200, 40, 40))
    words = ["a", "red", "wall", "and", "nothing", "else"]
    maps = np.stack([one_region(step % 4, 0) for step in range(7)])
    caption = output(words, maps, np.linspace(0, 1, 7))
    captioned(caption, Box(1 / 6, 0, 5 / 6, 1), photograph).save(tmp_path / "wall.png")
    with Image.open(tmp_path / "wall.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    height, width = pixels.shape[0] // 2, pixels.shape[1] // 4
    red = pixels[..., 0] > 2 * pixels[..., 1]
    cells = red[: 2 * height, : 4 * width].reshape(2, height, 4, width).mean(axis=(1, 3)).ravel()
    assert all(cells[: len(words) + 1] > 0.1)
    assert not red[-height // 2 :, -width:].any()


GREY = Image.new("RGB", (300, 200), (200, 200, 200))


def animate(path: Path) -> list[Image.Image]:
    captioned(gated().best._replace(words=("a", "dog", "runs", "fast")), picture=GREY).save(path)
    with Image.open(path) as picture:
        assert picture.info["loop"] == 0
        times = [frame.info.get("duration") for frame in ImageSequence.Iterator(picture)]
        assert path.suffix == ".webp" or times == [WHOLE, *[WORD] * 4]
        return [frame.copy().convert("RGB") for frame in ImageSequence.Iterator(picture)]


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_the_photograph_comes_first_and_then_each_word_with_its_map(suffix: str, tmp_path: Path):
    first, *frames = animate(tmp_path / f"a.{suffix}")
    assert np.asarray(first)[:200].min() > 190
    assert len(frames) == 4
    for frame, (row, column) in zip(frames, PEAKS, strict=True):
        light = np.asarray(frame.convert("L"), dtype=float)[:200]
        y, x = np.unravel_index(light.argmax(), light.shape)
        assert 75 + 50 * column <= x <= 75 + 50 * (column + 1)
        assert 200 / 3 * row <= y <= 200 / 3 * (row + 1)
        assert light[:, :70].max() < 50


def test_a_colored_map_is_seen_on_a_black_photograph(tmp_path: Path):
    path = tmp_path / "a.png"
    light = gated().best._replace(words=("a",))
    captioned(light, picture=Image.new("RGB", (300, 200))).save(path, colormap="inferno")
    with Image.open(path) as picture:
        left, right = np.split(np.asarray(picture.convert("RGB")).astype(int)[100:], [picture.width // 2], axis=1)
    assert np.ptp(left.max(axis=2)[20:-20, 20:-20]) == 0
    red, _, blue = right.reshape(-1, 3)[(right.sum(axis=2) < 700).ravel()].max(axis=0)
    assert red > 140 > blue  # 0.6 of the end of inferno, which is yellow


@pytest.mark.parametrize(
    ("style", "width"), [({}, 400), ({"width": 2.0}, 256), ({"dpi": 256}, 800), ({"width": 20}, 900)]
)
def test_an_animation_is_as_large_as_asked_but_not_larger_than_the_photograph(
    style: dict[str, Any], width: int, tmp_path: Path
):
    gated(Image.new("RGB", (900, 600))).save(tmp_path / "a.gif", **style)
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.width == width


def test_the_present_word_is_marked(tmp_path: Path):
    first, *frames = animate(tmp_path / "a.webp")
    yellow = [(pixels[200:, :, 2] < 140) & (pixels[200:, :, 0] > 200) for pixels in map(np.asarray, [first, *frames])]
    widths = [np.ptp(np.nonzero(marked)[1]) if marked.any() else 0 for marked in yellow]
    assert 0 == widths[0] < widths[1] < min(widths[2:])  # "a" is shorter than the other words


@pytest.mark.parametrize(
    "words", slow_after(1, [["a", "dog", "walking"] * 2, ["donaudampfschifffahrt" * 5], list("海边的沙滩上奔跑") * 2])
)
def test_the_whole_caption_is_below_the_photograph(words: list[str], tmp_path: Path):
    caption = output(words, np.ones((len(words) + 1, 3, 3)), np.ones(len(words) + 1))
    caption, amounts = caption._replace(parts=tuple(words)), []
    for width, height in ((400, 100), (20, 400)):
        path = tmp_path / f"{width}.webp"
        captioned(caption, picture=Image.new("RGB", (width, height))).save(path)
        with Image.open(path) as picture:
            ink = 1 - np.asarray(picture.convert("L"))[height + 10 :] / 255
        assert max(ink[-2:].max(), ink[:, :2].max(), ink[:, -2:].max()) < 0.2
        amounts.append(ink.sum())
    assert amounts == pytest.approx([amounts[0]] * 2, rel=0.02)


def test_settings_of_plots_do_not_change_an_animation(tmp_path: Path):
    plain = [np.asarray(frame) for frame in animate(tmp_path / "a.webp")]
    with matplotlib.rc_context({"savefig.dpi": 200, "savefig.bbox": "tight", "image.origin": "lower"}):
        np.testing.assert_array_equal([np.asarray(frame) for frame in animate(tmp_path / "b.webp")], plain)


def test_a_caption_without_words_is_the_photograph_alone(tmp_path: Path):
    captioned(output([], np.zeros((1, 3, 3)), np.ones(1)), picture=GREY).save(tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as picture:
        assert picture.n_frames == 1


LOG = """epoch,step,train/loss_per_word,val/bleu4,val/loss_per_word
0,9,,12.5,3.5
0,9,4.0,,
1,19,,14.0,3.25
1,19,3.75,,
"""


def test_rows_of_one_epoch_are_put_together(tmp_path: Path):
    (tmp_path / "metrics.csv").write_text(LOG)
    assert read_metrics(tmp_path / "metrics.csv") == {
        "train/loss_per_word": {1: 4.0, 2: 3.75},
        "val/bleu4": {1: 12.5, 2: 14.0},
        "val/loss_per_word": {1: 3.5, 2: 3.25},
    }
