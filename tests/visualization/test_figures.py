"""Curves of runs, and heatmaps on the photograph, as a figure and as an animation, in fonts of many scripts."""

import io
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from browser_pages import captioned
from matplotlib import font_manager
from PIL import Image, ImageSequence
from sample_pages import PEAKS, gated, output
from slow_cases import slow_after

from showattendtell.images.reading import Preprocessing
from showattendtell.visualization import figures
from showattendtell.visualization.figures import (
    FALLBACKS,
    WHOLE,
    WORD,
    encode,
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


CHINESE = "一只黑色的狗在草地上奔跑"
UNKNOWN = "\U00017000"
"""A Tangut sign, which ordinary systems have no font for."""


@pytest.fixture(autouse=True)
def no_note_yet() -> None:
    figures._note_missing_letters.cache_clear()


def draw(words: str) -> np.ndarray:
    maps = np.full((len(words), 3, 3), 1 / 9)
    caption = output([*words], maps, np.full(len(words), 0.5))
    figure = captioned(caption, picture=Image.new("RGB", (60, 40), "white")).plot()
    return np.asarray(Image.open(io.BytesIO(encode(figure))))


def test_a_caption_in_chinese_is_drawn_with_a_font_that_has_its_letters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    installed = font_manager.FontManager().ttflist  # the stored list may be older than a font
    monkeypatch.setattr(font_manager.fontManager, "ttflist", installed)
    if not {*FALLBACKS} & {*font_manager.get_font_names()}:
        pytest.skip("needs a Chinese font, as from `make setup-tests`")
    assert (draw(CHINESE) != draw(CHINESE[::-1])).any()
    assert capsys.readouterr().err == ""


def test_letters_without_a_font_are_noted_once(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        draw(f"a{UNKNOWN}")
    assert capsys.readouterr().err.count("note: ") == 1


def test_families_of_the_user_come_first():
    with matplotlib.rc_context({"font.family": ["DejaVu Serif"]}):
        serif = draw("a")
    assert (serif != draw("a")).any()
