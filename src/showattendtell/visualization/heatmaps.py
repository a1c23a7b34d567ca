"""Attention heatmaps: where the model looked at each word, on the photograph's pixels (Xu et al. 2015, Sec. 5.4), as a
matplotlib figure and as an animation."""

import math
import unicodedata
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter

from showattendtell.types import NOT_SURE, Box, RegionBoxes
from showattendtell.visualization.figures import encode, families, pillow_font
from showattendtell.visualization.rendering import ANIMATIONS, DARKEST, UNGATED, Drawing
from showattendtell.visualization.result_files import write_bytes

MOST_COLUMNS = 6

PANEL, DPI, FILLED = 2.0, 160, 0.96
"""Width of a panel of a figure in inches, its resolution, and the part of the width that the picture fills, which has
more than 300 pixels."""

CAPTION, TITLE = 0.35, 0.3
"""Height of the lines above a figure and above a panel in inches."""

SHARP = 1.5
"""Pixels of the longest side of the photograph in a figure for each dot of the width of its panel."""

MOST_HIGH = 3
"""Maximum ratio of the height and width of a panel for a word."""

ANIMATED_SIDE = 400
WORD, WHOLE = 800, 1600
"""Milliseconds for which an animation shows a word, and the photograph alone."""

LETTERS, GAP, LINE, MARGIN = 16, 8, 26, 10
"""Of an animation in pixels: font size, space between words, line height, and margin around the caption."""

PAPER, INK, QUIET, MARK = "#ffffff", "#1d1d1f", "#6b6b73", "#f7c95c"


def map_onto_photograph(weights: np.ndarray, seen: Box | RegionBoxes, width: int, height: int) -> np.ndarray:
    """Map attention on the grid (rows, columns), or on boxes (L,), to the photograph (height, width), with peak 1.

    The grid is enlarged by bicubic interpolation and smoothed by a Gaussian of half a region, which approximates the
    regions' overlapping receptive fields. It is placed on the part of the photograph that the encoder saw; elsewhere
    the map is 0.

    Of regions that are boxes, a pixel has the largest of the weights of the boxes that it lies in.
    """
    canvas = np.zeros((height, width), dtype=np.float32)
    if isinstance(seen, RegionBoxes):
        for number in weights.argsort():  # the largest weight last
            columns, rows = _pixels(seen.boxes[number], width, height)
            canvas[rows, columns] = weights[number]
    else:
        left, top, right, bottom = map(round, seen)
        size = (max(1, right - left), max(1, bottom - top))
        enlarged = Image.fromarray(weights.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
        region = np.divide(size[::-1], weights.shape)
        smooth = gaussian_filter(np.asarray(enlarged), region / 2, mode="nearest").clip(min=0)
        canvas[max(0, top) : bottom, max(0, left) : right] = smooth[: height - top, : width - left]
    return canvas / max(canvas.max(), np.finfo(np.float32).tiny)


def _pixels(box: Box, width: int, height: int) -> tuple[slice, slice]:
    """Return the columns and rows of pixels of a box, one at least."""
    left, top = min(int(box.left), width - 1), min(int(box.top), height - 1)
    return slice(left, max(left + 1, round(box.right))), slice(top, max(top + 1, round(box.bottom)))


def draw(drawing: Drawing, path: Path, width: float | None = None, dpi: float | None = None) -> None:
    """Write a file: an animation as GIF or WebP, or the figure of `heatmap_figure`."""
    suffix = path.suffix.lower()
    content = (
        animation(drawing, suffix) if suffix in ANIMATIONS else encode(heatmap_figure(drawing, width, dpi), suffix)
    )
    write_bytes(content, path)


def heatmap_figure(drawing: Drawing, width: float | None = None, dpi: float | None = None) -> Figure:
    """Return a figure with the photograph and its caption, then a panel for each word with its map and beta.

    Args:
        width: of the figure in inches, to which the letters are scaled; by default PANEL for each panel of a row.
        dpi: dots per inch; DPI by default.
    """
    caption, dpi = drawing.caption, dpi or DPI
    panels = len(caption.words) + 1
    rows = math.ceil(panels / MOST_COLUMNS)
    columns = math.ceil(panels / rows)
    panel = width / columns if width else PANEL
    scale, photograph = panel / PANEL, drawing.photograph
    small, seen = _scale(drawing, min(1.0, SHARP * panel * dpi / max(photograph.size)))
    high = FILLED * panel * min(photograph.height / photograph.width, MOST_HIGH)
    row_height = high + TITLE * scale
    height, edge = row_height * rows + CAPTION * scale, (1 - FILLED) / 2
    # Not pyplot, which would need a display, or change the plots of the user's notebook.
    figure, family = Figure((panel * columns, height), dpi), families(caption.marked)
    top, style = 1 - 0.08 * scale / height, dict[str, Any](fontfamily=family, parse_math=False)
    figure.suptitle(caption.marked, fontsize=13 * scale, y=top, va="top", **style)
    gates = caption.gates[: len(caption.words)]
    titles: Sequence[str] = caption.words
    if (gates < UNGATED).any():  # the model has a gate
        titles = [f"{word}  \N{GREEK SMALL LETTER BETA} {beta:.2f}" for word, beta in zip(titles, gates, strict=True)]
    for place, title in enumerate(["", *titles]):
        row, column = divmod(place, columns)
        bottom = (rows - 1 - row) * row_height + edge * panel
        axis = figure.add_axes(((column + edge) / columns, bottom / height, FILLED / columns, high / height))
        axis.axis("off")
        axis.imshow(_darken(small, caption.attention[place - 1], seen) if place else small)
        axis.set_title(title, pad=5 * scale, fontsize=10 * scale, **style)
    return figure


def animation(drawing: Drawing, suffix: str) -> bytes:
    """Return a GIF or WebP, by the suffix, in an endless loop: the photograph, then each word with its map. Beta is not
    shown."""
    caption = drawing.caption
    parts = [*(caption.parts or (f" {word}" for word in caption.words)), *[NOT_SURE] * caption.unsure]
    small, seen = _scale(drawing, min(1.0, ANIMATED_SIDE / max(drawing.photograph.size)))
    font, frames = pillow_font(caption.marked, LETTERS), []
    placed, height = place_words(parts, font, small.width)
    directions = map(unicodedata.bidirectional, caption.caption)
    if next((direction for direction in directions if direction in ("L", "R", "AL")), "L") != "L":
        placed = [(word, small.width - x - font.getlength(word), y) for word, x, y in placed]  # from the right
    for current in range(-1, len(caption.words)):  # the photograph alone, then each word: later ones are dimmed
        frame = Image.new("RGB", (small.width, small.height + height), PAPER)
        frame.paste(small if current < 0 else _darken(small, caption.attention[current], seen))
        canvas = ImageDraw.Draw(frame)
        for i, (word, x, y) in enumerate(placed):
            top = small.height + y
            if i == current:
                canvas.rectangle((x - 3, top - 2, x + font.getlength(word) + 3, top + LETTERS + 4), fill=MARK)
            canvas.text((x, top), word, fill=QUIET if 0 <= current < i else INK, font=font)
        frames.append(frame if suffix == ".webp" else frame.quantize(dither=Image.Dither.FLOYDSTEINBERG))
    times, content = [WHOLE, *[WORD] * len(caption.words)], BytesIO()
    frames[0].save(content, suffix[1:], save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80)
    return content.getvalue()


def place_words(
    parts: Sequence[str], font: ImageFont.FreeTypeFont, width: int
) -> tuple[list[tuple[str, float, float]], int]:
    """Break words, with the spaces before them, into lines of at most `width` pixels, unless one word is wider.

    Returns:
        Each word with its upper left corner (x, y), and the total height.
    """
    x = y = float(MARGIN)
    placed: list[tuple[str, float, float]] = []
    for part in parts:
        word = part.strip()
        if placed and not part.startswith(" "):
            x -= GAP
        if placed and x + font.getlength(word) > width - MARGIN:
            x, y = float(MARGIN), y + LINE
        placed.append((word, x, y))
        x += font.getlength(word) + GAP
    return placed, int(y) + LINE + MARGIN


def _scale(drawing: Drawing, scale: float) -> tuple[Image.Image, Box | RegionBoxes]:
    """Scale the photograph, and the part that the encoder saw."""
    width, height = (max(1, round(side * scale)) for side in drawing.photograph.size)
    return drawing.photograph.convert("RGB").resize((width, height)), drawing.seen.scaled(scale, scale)


def _darken(photograph: Image.Image, weights: np.ndarray, seen: Box | RegionBoxes) -> Image.Image:
    """Darken the photograph where attention on the grid (rows, columns) is small, or on boxes (L,), of which the one
    with the largest weight is outlined."""
    light = map_onto_photograph(weights, seen, photograph.width, photograph.height)[..., np.newaxis]
    pixels = np.asarray(photograph, dtype=np.float32) * (DARKEST + (1 - DARKEST) * light)
    darkened = Image.fromarray(np.rint(pixels).astype(np.uint8))
    if isinstance(seen, RegionBoxes):
        columns, rows = _pixels(seen.boxes[int(weights.argmax())], photograph.width, photograph.height)
        corners = (columns.start, rows.start, columns.stop - 1, rows.stop - 1)
        ImageDraw.Draw(darkened).rectangle(corners, outline=MARK, width=2)
    return darkened
