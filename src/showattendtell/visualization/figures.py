"""Figures: curves of runs, and attention heatmaps, which show where the model looked at each word (Xu et al. 2015, Sec.
5.4), as panels and as animations."""

import csv
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.text import Text
from scipy.ndimage import gaussian_filter

from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write, open_regular, write_errors
from showattendtell.types import Box
from showattendtell.visualization.rendering import DARKEST, UNGATED, Drawing

logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)  # WenQuanYi has no weight that it calls normal

KINDS = ("png", "jpg", "jpeg", "tif", "tiff", "pdf", "svg")
"""Suffixes of pictures that do not move; gif and webp are animations."""

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

ANIMATED_SIDE, ANIMATED_WIDTH = 400, 240
"""Pixels of the longest side of the photograph in an animation, and of the width of an animation at least."""

WORD, WHOLE = 800, 1600
"""Milliseconds for which an animation shows a word, and the photograph alone."""

ANIMATED_DPI = 128  # a power of two, so that sizes in inches are exact
WORD_LINE, LINE, CELL = 40, 20, 9
"""Pixels below the photograph of an animation: height of the part for the word, and of a line of the caption, and width
of a letter; Chinese characters have twice this width."""

MARK = "#f7c95c"

FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "Arial Unicode MS",
)
"""Families with Chinese characters, on Linux, macOS and Windows."""


def encode(figure: Figure, suffix: str = ".png") -> bytes:
    """Return the image file of a figure; raise `UserError` for a suffix that matplotlib cannot write."""
    kind = suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UserError(f"a picture cannot be written as '{suffix}'; choose one of {', '.join(KINDS)}")
    return _save(figure, kind)


def _save(figure: Figure, kind: str) -> bytes:
    content = BytesIO()
    with warnings.catch_warnings(record=True) as missing:
        warnings.filterwarnings("always", "Glyph .* missing from font")
        # the user's rcParams must not change the size of the figure
        figure.savefig(content, format=kind, dpi=figure.dpi, bbox_inches=figure.bbox_inches)
    if missing:
        _note_missing_letters()
    return content.getvalue()


def read_metrics(path: Path) -> dict[str, dict[int, float]]:
    """Return each metric's value by epoch (from 1)."""
    metrics: dict[str, dict[int, float]] = {}
    with open_regular(path, "r", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and row["epoch"] and name not in ("epoch", "step"):
                    metrics.setdefault(name, {})[int(row["epoch"]) + 1] = float(value)
    return metrics


def draw_curves(metrics: dict[str, dict[int, float]], path: Path) -> None:
    """Draw the training and validation loss per word (left) and BLEU-4 of the validation captions (right)."""
    figure = Figure((9, 3.2), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, label in (("train/nll_per_word", "training"), ("val/nll_per_word", "validation")):
        points = metrics.get(name, {})
        left.plot([*points], [*points.values()], marker=".", label=label)
    left.set(title="-log p per word", xlabel="epoch")
    left.legend()
    bleu = metrics.get("val/bleu4", {})
    right.plot([*bleu], [*bleu.values()], marker=".", color="C2")
    if bleu:
        best = max(bleu.items(), key=itemgetter(1))
        right.annotate(f"{best[1]:.1f}", best, textcoords="offset points", xytext=(0, 5), ha="center")
    right.margins(y=0.15)
    right.set(title="BLEU-4 on validation, without brevity penalty", xlabel="epoch")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.xaxis.get_major_locator().set_params(integer=True)
    with write_errors(path, "set hydra.run.dir to another folder"), atomic_write(path) as stream:
        stream.write(encode(figure, path.suffix))


def map_onto_photograph(weights: np.ndarray, seen: Box, width: int, height: int) -> np.ndarray:
    """Map attention on the grid (rows, columns) to the photograph (height, width), with peak 1.

    The grid is enlarged by bicubic interpolation and smoothed by a Gaussian of half a region, which approximates the
    regions' overlapping receptive fields. It is placed on the part of the photograph that the encoder saw; elsewhere
    the map is 0.
    """
    left, top, right, bottom = map(round, seen)
    size = (max(1, right - left), max(1, bottom - top))
    enlarged = Image.fromarray(weights.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    region = np.divide(size[::-1], weights.shape)
    smooth = gaussian_filter(np.asarray(enlarged), region / 2, mode="nearest").clip(min=0)
    canvas = np.zeros((height, width), dtype=np.float32)
    canvas[max(0, top) : bottom, max(0, left) : right] = smooth[: height - top, : width - left]
    return canvas / max(canvas.max(), np.finfo(np.float32).tiny)


def heatmap_figure(drawing: Drawing, width: float | None = None, dpi: float | None = None) -> Figure:
    """Return a figure with the photograph and its caption, then a panel for each word with its map and beta.

    Args:
        width: of the figure in inches, to which the letters are scaled; by default PANEL for each panel of a row.
        dpi: dots per inch; DPI by default.
    """
    photograph, caption, _ = drawing
    dpi = dpi or DPI
    rows = math.ceil((len(caption.words) + 1) / MOST_COLUMNS)
    columns = math.ceil((len(caption.words) + 1) / rows)
    panel = width / columns if width else PANEL
    scale, edge = panel / PANEL, (1 - FILLED) / 2
    small, seen = _scale(drawing, min(1.0, SHARP * panel * dpi / max(photograph.size)))
    high, title_height = FILLED * panel * min(photograph.height / photograph.width, MOST_HIGH), TITLE * scale
    height = (high + title_height) * rows + CAPTION * scale
    # Not pyplot, which would need a display, or change the plots of the user's notebook.
    figure = Figure((panel * columns, height), dpi)
    style = dict[str, Any](fontfamily=families(), parse_math=False)
    figure.suptitle(caption.marked, fontsize=13 * scale, y=1 - 0.08 * scale / height, va="top", **style)
    gates = caption.gates[: len(caption.words)]
    titles: Sequence[str] = caption.words
    if (gates < UNGATED).any():  # the model has a gate
        titles = [f"{word}  \N{GREEK SMALL LETTER BETA} {beta:.2f}" for word, beta in zip(titles, gates, strict=True)]
    for place, title in enumerate(["", *titles]):
        row, column = divmod(place, columns)
        bottom = (rows - 1 - row) * (high + title_height) + edge * panel
        axis = figure.add_axes(((column + edge) / columns, bottom / height, FILLED / columns, high / height))
        axis.axis("off")
        axis.imshow(_darken(small, caption.attention[place - 1], seen) if place else small, origin="upper")
        axis.set_title(title, pad=5 * scale, fontsize=10 * scale, **style)
    return figure


def animation(drawing: Drawing, suffix: str) -> bytes:
    """Return a GIF or WebP, by the suffix, in an endless loop: the photograph, then each word with its map, above the
    word and the caption. Beta is not shown."""
    caption, frames = drawing.caption, []
    small, seen = _scale(drawing, min(1.0, ANIMATED_SIDE / max(drawing.photograph.size)))
    width = max(small.width, ANIMATED_WIDTH)
    lines = Text(caption.marked).wrap(Console(), width // CELL - 1)  # also breaks text without spaces
    written = WORD_LINE + LINE * len(lines)
    height = small.height + written
    style = dict[str, Any](fontfamily=families(), parse_math=False, ha="center")
    for place, word in enumerate(["", *caption.words]):
        figure = Figure((width / ANIMATED_DPI, height / ANIMATED_DPI), ANIMATED_DPI)
        shown = _darken(small, caption.attention[place - 1], seen) if place else small
        figure.figimage(np.asarray(shown), (width - small.width) // 2, written, origin="upper")
        if word:
            mark = {"facecolor": MARK, "edgecolor": "none", "pad": 3}
            middle = (written - WORD_LINE / 2) / height
            figure.text(0.5, middle, word, va="center", fontsize=10, bbox=mark, **style)
        figure.text(0.5, LINE * len(lines) / height, "\n".join(map(str, lines)), va="top", fontsize=8, **style)
        frames.append(Image.frombytes("RGBA", (width, height), _save(figure, "rgba")).convert("RGB"))
    times, content = [WHOLE, *[WORD] * len(caption.words)], BytesIO()
    frames[0].save(content, suffix[1:], save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80)
    return content.getvalue()


def _scale(drawing: Drawing, scale: float) -> tuple[Image.Image, Box]:
    """Scale the photograph, and the part that the encoder saw."""
    width, height = (max(1, round(side * scale)) for side in drawing.photograph.size)
    return drawing.photograph.convert("RGB").resize((width, height)), drawing.seen.scaled(scale, scale)


def _darken(photograph: Image.Image, weights: np.ndarray, seen: Box) -> Image.Image:
    """Darken the photograph where attention on the grid (rows, columns) is small."""
    light = map_onto_photograph(weights, seen, photograph.width, photograph.height)[..., np.newaxis]
    pixels = np.asarray(photograph, dtype=np.float32) * (DARKEST + (1 - DARKEST) * light)
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def families() -> list[str]:
    """Return matplotlib's families, and those of FALLBACKS that it has found; each letter has the first with it."""
    found = set(font_manager.get_font_names())
    return [*matplotlib.rcParams["font.family"], *(family for family in FALLBACKS if family in found)]


@cache
def _note_missing_letters() -> None:
    advice = f"install one, such as Noto Sans CJK, and delete {matplotlib.get_cachedir()}/fontlist-*.json"
    print(f"note: matplotlib has no font with some letters, which figures show as boxes; {advice}", file=sys.stderr)
