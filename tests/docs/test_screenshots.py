"""The screenshots of the documentation, and the commands of the script that makes them."""

import importlib.util
from typing import Any

import pytest
from documentation import PAGES
from repository import ROOT

from showattendtell.config.command_line import check_command
from showattendtell.config.entry_point import without_dashes


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
        check_command(command, without_dashes(arguments), complete=False)  # raises a `UserError` otherwise


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_shown_in_light_and_dark_colours_by_a_small_file(scheme: str):
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in (*script().PAGES, "serve"):
        file = ROOT / f"docs/figures/{name}-{scheme}.webp"
        assert file.stat().st_size < 200_000
        assert f"figures/{file.name})" in pages
