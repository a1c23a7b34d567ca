"""Fonts of figures: DejaVu Sans, and for characters that it lacks, such as Chinese, other fonts of the system."""

import os
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from PIL import ImageFont
from rich.console import Console

from showattendtell.errors import UserError

FONT = "SHOWATTENDTELL_FONT"
"""Environment variable with the file or the name of a font that is preferred to all others."""


class FontFinder:
    """Finds fonts with outlines by the characters that they have. Bitmap fonts, as for colored emoji, are not used.

    Args:
        preferred: file or name of a font.
    """

    def __init__(self, preferred: str | None = None):
        self.files = [Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")]
        self._missing: set[str] = set()
        if preferred:
            self.files.insert(0, find_font(preferred))

    def covering(self, text: str) -> list[Path]:
        """Return the files of fonts, in the order of preference, for all characters of the text that any font has.

        Prints a note when it first meets a character that no font has.
        """
        visible = {letter for letter in text if not letter.isspace() and unicodedata.category(letter)[0] != "C"}
        needed = visible - self._missing
        for file in self.files:
            needed -= characters(file, needed)
        if needed:
            self._search(needed)
        return self.files

    def _search(self, needed: set[str]) -> None:
        """Add the fonts of the system that have the most of these characters; of a family rather the regular one."""
        files = sorted(map(Path, font_manager.findSystemFonts()))
        files.sort(key=lambda file: "regular" not in file.stem.lower())
        coverage = {file: characters(file, needed) for file in files}
        while needed & set().union(*coverage.values()):
            best = max(coverage, key=lambda file: len(coverage[file] & needed))
            self.files.append(best)
            needed = needed - coverage[best]
        if needed and not self._missing:
            note = (
                f"note: no font has {' '.join(sorted(needed)[:5])}, which figures show as boxes; install one, such as "
                f"Noto Sans CJK or Symbola, or name one by {FONT}=NAME"
            )
            Console(stderr=True, highlight=False).print(note, style="yellow", soft_wrap=True)
        self._missing |= needed


@cache
def finder() -> FontFinder:
    return FontFinder(os.environ.get(FONT))


def find_font(name: str) -> Path:
    """Return the file of a font by its file or name; raise `UserError` if there is none."""
    if Path(name).is_file():
        return Path(name)
    try:
        return Path(font_manager.findfont(name, fallback_to_default=False))
    except ValueError:
        raise UserError(f"{FONT}={name}: no such font; give the file or the name of an installed font") from None


def characters(file: Path, needed: set[str]) -> set[str]:
    """Return the wanted characters that a font has; none for a bitmap font and a file that cannot be read."""
    try:
        font = FT2Font(str(file))
    except (OSError, RuntimeError):
        return set()
    return {character for character in needed if font.get_char_index(ord(character))} if font.scalable else set()


def families(text: str) -> list[str]:
    """Return the families for matplotlib's `fontfamily`, which takes each character from the first that has it."""
    return [_family(file) for file in finder().covering(text)]


@cache
def _family(file: Path) -> str:
    """Register a font under its path, since matplotlib may find another file by the family of the font."""
    font_manager.fontManager.ttflist.append(font_manager.FontEntry(fname=str(file), name=str(file)))
    return str(file)


def pillow_font(text: str, size: int) -> ImageFont.FreeTypeFont:
    """Return the font that has the most characters of the text."""
    needed = set(text)
    file = max(finder().covering(text), key=lambda file: len(characters(file, needed)))
    return ImageFont.truetype(str(file), size)


def right_to_left(words: Sequence[str]) -> bool:
    """Return whether the first letter belongs to a script that is written from right to left."""
    for letter in "".join(words):
        direction = unicodedata.bidirectional(letter)
        if direction in ("L", "R", "AL"):
            return direction != "L"
    return False
