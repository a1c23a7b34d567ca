"""A small picture of where a captioner looked at each word, drawn in a moment: for dashboards, which get many."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from showattendtell.records import Box
from showattendtell.report.heatmaps import DARKEST, map_onto_photograph, titles

WIDTH, LINE = 160, 20
"""Of a cell and of the line above it, in pixels."""

COLUMNS = 6


def draw_panel(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box
) -> Image.Image:
    """The photograph, then a cell a word with the map and beta, as `draw_heatmaps` has them.

    Args:
        weights: (T, rows, columns), T at least the number of words.
        gates: (T,) beta.
        seen: the part of the photograph that the encoder saw, in its pixels.
    """
    scale = WIDTH / photograph.width
    small = photograph.convert("RGB").resize((WIDTH, max(1, round(scale * photograph.height))))
    seen, pixels = Box(*(scale * edge for edge in seen)), np.asarray(small, dtype=np.float32)
    columns = min(COLUMNS, len(words) + 1)
    height = LINE + small.height
    canvas = Image.new("RGB", (columns * WIDTH, math.ceil((len(words) + 1) / columns) * height), "white")
    canvas.paste(small, (0, LINE))
    for cell, (title, step) in enumerate(zip(titles(words, gates), weights, strict=False), start=1):
        left, top = cell % columns * WIDTH, cell // columns * height
        light = map_onto_photograph(step, seen, small.width, small.height)[..., None]
        lit = Image.fromarray((pixels * (DARKEST + (1 - DARKEST) * light)).astype(np.uint8))
        canvas.paste(lit, (left, top + LINE))
        ImageDraw.Draw(canvas).text((left + 4, top + 2), title, "black", _font())
    return canvas


@cache
def _font() -> ImageFont.FreeTypeFont:
    """matplotlib's, which every installation has."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")), 13)
