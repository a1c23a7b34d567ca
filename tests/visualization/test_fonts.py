"""Fonts for captions in other scripts."""

import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.ft2font import FT2Font
from PIL import Image
from sample_pages import output

from showattendtell.types import Box
from showattendtell.visualization import figures
from showattendtell.visualization.figures import FontFinder
from showattendtell.visualization.pages import draw_picture as draw
from showattendtell.visualization.rendering import Drawing

CHINESE = "一只黑色的狗在草地上奔跑"
UNKNOWN = "\U00017000\U00013000\U00012000"
"""Tangut, Egyptian and Sumerian signs, which ordinary systems have no font for."""


@pytest.fixture(autouse=True)
def afresh() -> None:
    figures.finder.cache_clear()


@pytest.fixture
def no_system_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures.font_manager, "findSystemFonts", lambda: [])


def chinese_font() -> Path:
    """A font of the system that has these characters, by fontconfig, which knows them independently."""
    command = ["fc-list", f":charset={ord(CHINESE[0]):x}:scalable=true", "file"]
    found = subprocess.run(command, capture_output=True, text=True).stdout if shutil.which("fc-list") else ""
    return Path(found.partition(":")[0] or pytest.skip("needs a Chinese font, as from `make setup-tests`"))


def drawing(words: list[str], photograph: Image.Image | None = None) -> Drawing:
    maps = np.full((len(words), 3, 3), 1 / 9)
    photograph = photograph or Image.new("RGB", (60, 40), "white")
    return Drawing(photograph, output(words, maps, np.full(len(words), 0.5)), Box(0, 0, 60, 40))


def test_letters_that_dejavu_has_need_no_other_font(no_system_fonts: None):
    for text in ("a dog, ein süßer Hund", "собака бежит", "كلب يجري", "😀", " \n\t"):
        assert [file.name for file in FontFinder().covering(text)] == ["DejaVuSans.ttf"]


def test_a_font_of_the_system_has_the_letters_that_dejavu_lacks(capsys: pytest.CaptureFixture[str]):
    chinese_font()
    first, other, *_ = FontFinder().covering("a dog " + CHINESE)
    assert first.name == "DejaVuSans.ttf"
    assert all(FT2Font(str(other)).get_char_index(ord(one)) for one in CHINESE)
    assert capsys.readouterr().err == ""


def test_chinese_captions_become_pictures_without_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chinese_font()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(drawing(list(CHINESE)), tmp_path / "a.png")
        draw(drawing(list(CHINESE)), tmp_path / "a.gif")
    assert capsys.readouterr().err == ""
    draw(drawing([UNKNOWN[0]] * len(CHINESE)), tmp_path / "boxes.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "boxes.png").read_bytes()


def test_letters_without_a_font_are_noted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_system_fonts: None
):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(3):
            draw(drawing([*CHINESE, UNKNOWN[number]]), tmp_path / "a.png")
    noted = capsys.readouterr().err
    assert noted.count("\n") == noted.count("note: no font has") == 1
