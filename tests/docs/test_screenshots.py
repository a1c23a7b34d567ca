"""The pictures of the documentation, and the commands of the script that makes the screenshots."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from documentation import PAGES
from PIL import Image
from repository import ROOT

from showattendtell.config.compose import compose


def script() -> Any:
    pytest.importorskip("playwright", reason="needs playwright, which make setup installs")
    spec = importlib.util.spec_from_file_location("screenshots", ROOT / "docs/screenshots.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_commands_take_what_they_are_given():
    commands = script().COMMANDS
    assert commands
    for command, *arguments in commands:
        compose(command, arguments, complete=False)  # raises a `UserError` otherwise


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_shown_in_light_and_dark_colors_and_at_both_widths(scheme: str):
    made = script()
    shown = [(ROOT / page.parent / place).resolve() for page, _, place in pictures()]
    for name in (*made.PAGES, "serve"):
        file = made.FIGURES / f"{name}-{scheme}.webp"
        with Image.open(file) as picture:
            assert picture.width == sum(made.WIDTHS) + made.GAP == 1280 + 390 + made.GAP
        assert file in shown


def pictures() -> list[tuple[Path, str, str]]:
    """The page, the alt text and the path of each picture of the documentation."""
    found = [(page, *match) for page in PAGES for match in re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text())]
    return [(page, alt, place) for page, alt, place in found if not place.startswith("http")]


def test_every_picture_exists_and_has_an_alternative_text():
    assert len(pictures()) > 20
    for page, alt, place in pictures():
        assert (page.parent / place).is_file(), f"{page.name}: {place}"
        assert len(alt) > 10, f"{page.name}: {place}"


def test_every_figure_is_small_and_shown_or_used():
    files = list((ROOT / "docs/figures").iterdir())
    assert max(file.stat().st_size for file in files) < 400_000
    assert sum(file.stat().st_size for file in files) < 4_000_000
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [file.name for file in files if f"figures/{file.name}" not in text] == []
