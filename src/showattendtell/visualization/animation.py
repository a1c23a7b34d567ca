"""Animation of a caption: word by word, the photograph is bright where the model looked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write
from showattendtell.types import Box
from showattendtell.visualization.heatmaps import darken, shrink

LONGEST_SIDE = 400
WORD, WHOLE = 800, 1600
"""Milliseconds for which a word, and the photograph alone, are shown."""

LETTERS, GAP, LINE, MARGIN = 16, 8, 26, 10
"""In pixels: font size, space between words, line height, and margin around the caption."""

PAPER, INK, QUIET, MARK = "#ffffff", "#1d1d1f", "#8a8a92", "#f7c95c"


class PlacedWord(NamedTuple):
    """A word of the caption and its upper left corner below the photograph, in pixels."""

    word: str
    x: float
    y: float


def draw_animation(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box, path: Path
) -> None:
    """Write a GIF or WebP, by the path's suffix, in an endless loop: the photograph, then each word with its map.

    The arguments are those of `draw_heatmaps`; beta is not shown.
    """
    frames = list(_frames(photograph, words, weights, seen))
    times = [WHOLE, *[WORD] * len(words)]
    if path.suffix == ".gif":
        frames = [frame.quantize(dither=Image.Dither.FLOYDSTEINBERG) for frame in frames]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            kind = path.suffix.removeprefix(".")
            frames[0].save(stream, kind, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80)
    except OSError as fault:
        raise UserError(f"{path} cannot be written ({fault.strerror}); set output to another folder") from None


def _frames(photograph: Image.Image, words: Sequence[str], weights: np.ndarray, seen: Box) -> Iterator[Image.Image]:
    small, seen = shrink(photograph, seen, LONGEST_SIDE)
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf", LETTERS)
    placed, height = place_words(words, font, small.width)
    for number in range(-1, len(words)):
        frame = Image.new("RGB", (small.width, small.height + height), PAPER)
        frame.paste(small if number < 0 else darken(small, weights[number], seen))
        _write(frame, placed, number, small.height, font)
        yield frame


def place_words(words: Sequence[str], font: ImageFont.FreeTypeFont, width: int) -> tuple[list[PlacedWord], int]:
    """Break the words into lines of at most `width` pixels, unless one word is wider; return the total height, too."""
    x, y = float(MARGIN), float(MARGIN)
    placed: list[PlacedWord] = []
    for word in words:
        end = x + font.getlength(word)
        if placed and end > width - MARGIN:
            x, y = float(MARGIN), y + LINE
            end = x + font.getlength(word)
        placed.append(PlacedWord(word, x, y))
        x = end + GAP
    return placed, int(y) + LINE + MARGIN


def _write(
    frame: Image.Image, placed: Sequence[PlacedWord], present: int, top: int, font: ImageFont.FreeTypeFont
) -> None:
    """Draw the caption below the photograph: the current word highlighted, later words dimmed. Without a current word,
    nothing is highlighted or dimmed."""
    canvas = ImageDraw.Draw(frame)
    for number, (word, x, y) in enumerate(placed):
        if number == present:
            canvas.rectangle((x - 3, top + y - 2, x + font.getlength(word) + 3, top + y + LETTERS + 4), fill=MARK)
        canvas.text((x, top + y), word, fill=QUIET if 0 <= present < number else INK, font=font)
