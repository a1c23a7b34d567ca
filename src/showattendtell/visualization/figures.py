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
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from PIL import Image
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from scipy.ndimage import gaussian_filter

from showattendtell.errors import UserError, did_you_mean
from showattendtell.runtime.files import atomic_write, open_regular, write_errors
from showattendtell.settings import PictureStyle
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.rendering import DARKEST, UNGATED, scaled

logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)  # of FALLBACKS most systems have one or two

OPEN_TYPE: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none"}
"""Fonts as TrueType in PDF, since publishers refuse matplotlib's default, Type 3; text as text in SVG."""

OPAQUE = 0.6
"""Opacity of a colored map, as on the page."""

KINDS = ("png", "jpg", "jpeg", "tif", "tiff", "pdf", "svg")
"""Suffixes of pictures that do not move; gif and webp are animations."""

MOST_COLUMNS = 6

PANEL, DPI, FILLED = 2.0, 160, 0.96
"""Width of a panel of a figure in inches, its resolution, and the part of the width that the picture fills, which has
more than 300 pixels."""

LETTER = 0.66
"""Width of a letter, for its height, that the line of the caption leaves room for."""

CAPTION, TITLE = 0.35, 0.3
"""Height of the lines above a figure and above a panel in inches."""

SHARP = 1.5
"""Pixels of the longest side of the photograph in a figure for each dot of the width of its panel."""

MOST_HIGH = 3
"""Maximum ratio of the height and width of a panel for a word."""

ANIMATED_SIDE, MOST_ANIMATED, ANIMATED_WIDTH = 400, 2000, 240
"""Pixels of an animation: of the photograph's longest side by default and at most, and of the least default width."""

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
"""Families with Chinese characters, on Linux, macOS and Windows, after those of matplotlib."""


Caption = CaptionOutput[np.ndarray]
"""In words, with attention (T, rows, columns)."""


def encode(figure: Figure, suffix: str = ".png") -> bytes:
    """Return the image file of a figure; raise `UserError` for a suffix that matplotlib cannot write."""
    kind = suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UserError(f"a picture cannot be written as '{suffix}'; choose one of {', '.join(KINDS)}, gif, webp, html")
    return _save(figure, kind)


def _save(figure: Figure, kind: str) -> bytes:
    content = BytesIO()
    with warnings.catch_warnings(record=True) as missing, matplotlib.rc_context(OPEN_TYPE):
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
    for name, label in (("train/loss_per_word", "training"), ("val/loss_per_word", "validation")):
        points = metrics.get(name, {})
        left.plot([*points], [*points.values()], marker=".", label=label)
    left.set(title="loss per word", xlabel="epoch")
    left.legend()
    bleu = metrics.get("val/bleu4", {})
    right.plot([*bleu], [*bleu.values()], marker=".", color="C2")
    if bleu:
        best = max(bleu.items(), key=itemgetter(1))
        right.annotate(f"{best[1]:.1f}", best, textcoords="offset points", xytext=(0, 5), ha="center")
    right.set_ylim(0, 1.15 * max([1, *bleu.values()]))
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


def heatmap_figure(photograph: Image.Image, caption: Caption, seen: Box, style: PictureStyle) -> Figure:
    """Return a figure with the photograph and its caption, then a panel for each word with its map and beta.

    Args:
        photograph: upright RGB image.
        seen: the part that the encoder saw, in fractions of its width and height.
    """
    dpi, places = style.dpi or DPI, _places(caption.words, style)
    rows = min(style.rows or math.ceil(len(places) / MOST_COLUMNS), len(places))
    columns = math.ceil(len(places) / rows)
    panel = style.width / columns if style.width else PANEL
    scale, edge = panel / PANEL, (1 - FILLED) / 2
    small = scaled(photograph, min(1.0, SHARP * panel * dpi / max(photograph.size)))
    high, title_height = FILLED * panel * min(photograph.height / photograph.width, MOST_HIGH), TITLE * scale
    height = (high + title_height) * rows + CAPTION * scale
    # Not pyplot, which would need a display, or change the plots of the user's notebook.
    figure = Figure((panel * columns, height), dpi)
    text = _text_options()
    fitting = 72 * panel * columns / (LETTER * max(1, cell_len(caption.marked)))
    figure.suptitle(caption.marked, fontsize=min(13 * scale, fitting), y=1 - 0.08 * scale / height, va="top", **text)
    gates = caption.gates[: len(caption.words)]
    titles: Sequence[str] = caption.words
    if (gates < UNGATED).any():  # the model has a gate
        titles = [f"{word}  \N{GREEK SMALL LETTER BETA} {beta:.2f}" for word, beta in zip(titles, gates, strict=True)]
    for number, place in enumerate(places):
        row, column = divmod(number, columns)
        bottom = (rows - 1 - row) * (high + title_height) + edge * panel
        axis = figure.add_axes(((column + edge) / columns, bottom / height, FILLED / columns, high / height))
        axis.axis("off")
        axis.imshow(_show_map(small, caption, seen, place, style.colormap), origin="upper")
        if place is not None:
            axis.set_title(titles[place], pad=5 * scale, fontsize=10 * scale, **text)
    return figure


def animation(photograph: Image.Image, caption: Caption, seen: Box, style: PictureStyle, suffix: str) -> bytes:
    """Return a GIF or WebP, by the suffix, in an endless loop: the photograph, then each word with its map, above the
    word and the caption. Beta is not shown. The other arguments are those of `heatmap_figure`."""
    frames = []
    side, dpi = max(photograph.size), style.dpi or ANIMATED_DPI
    fit = min(1.0, ANIMATED_SIDE / side)
    wanted = style.width * dpi / photograph.width if style.width else fit * dpi / ANIMATED_DPI
    scale = min(1.0, MOST_ANIMATED / side, wanted)
    small = scaled(photograph, scale)
    zoom = scale / fit
    width = max(small.width, round(ANIMATED_WIDTH * zoom))
    lines = Text(caption.marked).wrap(Console(), round(width / zoom) // CELL - 1)  # also breaks text without spaces
    written = round(zoom * (WORD_LINE + LINE * len(lines)))
    height = small.height + written
    text = {**_text_options(), "ha": "center"}
    places = _places(caption.words, style)
    for place in places:
        figure = Figure((width / ANIMATED_DPI, height / ANIMATED_DPI), ANIMATED_DPI)
        shown = _show_map(small, caption, seen, place, style.colormap)
        figure.figimage(np.asarray(shown), (width - small.width) // 2, written, origin="upper")
        if place is not None:
            mark = {"facecolor": MARK, "edgecolor": "none", "pad": 3 * zoom}
            middle = (written - zoom * WORD_LINE / 2) / height
            figure.text(0.5, middle, caption.words[place], va="center", fontsize=10 * zoom, bbox=mark, **text)
        top = (written - zoom * WORD_LINE) / height
        figure.text(0.5, top, "\n".join(map(str, lines)), va="top", fontsize=8 * zoom, **text)
        frames.append(Image.frombytes("RGBA", (width, height), _save(figure, "rgba")).convert("RGB"))
    times, content = [WHOLE, *[WORD] * (len(places) - 1)], BytesIO()
    frames[0].save(content, suffix[1:], save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80)
    return content.getvalue()


def _text_options() -> dict[str, Any]:
    """Return options for captions: the fonts, of which each letter has the first with it, and no formulas."""
    return {"fontfamily": [*matplotlib.rcParams["font.family"], *FALLBACKS], "parse_math": False}


def _places(words: Sequence[str], style: PictureStyle) -> list[int | None]:
    """Return what the panels of a figure and the frames of an animation show: the photograph (None), then the maps of
    these words."""
    return [None, *(place for place, word in enumerate(words) if style.words is None or word in style.words)]


def _show_map(
    photograph: Image.Image, caption: Caption, seen: Box, place: int | None, colormap: str | None
) -> Image.Image:
    """Lay the map of a word over the photograph: in colors, or by darkening it where attention is small."""
    if place is None:
        return photograph
    width, height = photograph.size
    light = map_onto_photograph(caption.attention[place], seen.scaled(width, height), width, height)
    pixels: np.ndarray = np.asarray(photograph, dtype=np.float32)
    if colormap:
        pixels = (1 - OPAQUE) * pixels + OPAQUE * 255 * find_colormap(colormap)(light)[..., :3]
    else:
        pixels = pixels * (DARKEST + (1 - DARKEST) * light[..., np.newaxis])
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def find_colormap(name: str) -> Colormap:
    """Return a colormap of matplotlib, or raise `UserError`."""
    if name not in matplotlib.colormaps:
        raise UserError(f"colormap={name} is not one of matplotlib's{did_you_mean(name, matplotlib.colormaps)}")
    return matplotlib.colormaps[name]


@cache
def _note_missing_letters() -> None:
    advice = f"install one, such as Noto Sans CJK, and delete {matplotlib.get_cachedir()}/fontlist-*.json"
    print(f"note: matplotlib has no font with some letters, which figures show as boxes; {advice}", file=sys.stderr)
