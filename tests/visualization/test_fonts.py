"""Fonts for captions in other scripts."""

import io

import matplotlib
import numpy as np
import pytest
from browser_pages import captioned
from matplotlib import font_manager
from PIL import Image
from sample_pages import output

from showattendtell.visualization import figures
from showattendtell.visualization.figures import FALLBACKS, encode

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
