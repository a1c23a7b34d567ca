"""Attention heatmaps: where the model looked at each word, on the photograph's pixels (Xu et al. 2015, Sec. 5.4)."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter

from showattendtell.types import Box
from showattendtell.visualization.figures import save_picture
from showattendtell.visualization.rendering import DARKEST, UNGATED

MOST_COLUMNS = 6
LONGEST_SIDE = 480
DPI = 110


def map_onto_photograph(weights: np.ndarray, seen: Box, width: int, height: int) -> np.ndarray:
    """Map attention on the grid (rows, columns) to the photograph (height, width), with peak 1.

    The grid is enlarged by bicubic interpolation and smoothed by a Gaussian of half a region, which approximates the
    regions' overlapping receptive fields. It is placed on the part of the photograph that the encoder saw; elsewhere
    the map is 0.
    """
    left, top, right, bottom = (round(edge) for edge in seen)
    size = (max(1, right - left), max(1, bottom - top))
    grid = Image.fromarray(weights.astype(np.float32))
    enlarged = np.asarray(grid.resize(size, Image.Resampling.BICUBIC))
    region = (size[1] / weights.shape[0], size[0] / weights.shape[1])
    smooth = gaussian_filter(enlarged, sigma=(region[0] / 2, region[1] / 2), mode="nearest").clip(min=0)
    canvas = np.zeros((height, width), dtype=np.float32)
    canvas[max(0, top) : bottom, max(0, left) : right] = smooth[: height - top, : width - left]
    peak = canvas.max()
    return canvas / peak if peak > 0 else canvas


def shrink(photograph: Image.Image, seen: Box, longest: int) -> tuple[Image.Image, Box]:
    """Scale the photograph down to a maximum length of its longest side; also return the part that the encoder saw."""
    scale = min(1.0, longest / max(photograph.size))
    size = (max(1, round(photograph.width * scale)), max(1, round(photograph.height * scale)))
    return photograph.resize(size), seen.scaled(scale, scale)


def darken(photograph: Image.Image, weights: np.ndarray, seen: Box) -> Image.Image:
    """Darken the photograph where attention on the grid (rows, columns) is small."""
    light = map_onto_photograph(weights, seen, photograph.width, photograph.height)[..., np.newaxis]
    pixels = np.asarray(photograph, dtype=np.float32) * (DARKEST + (1 - DARKEST) * light)
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def draw_heatmaps(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box, path: Path
) -> None:
    """Write the figure of `heatmap_figure` to a file."""
    figure = heatmap_figure(photograph, words, weights, gates, seen)
    save_picture(figure, path, "output to another folder", DPI)


def heatmap_figure(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box
) -> Figure:
    """Return a figure with the photograph and its caption, then a panel for each word with its map and beta.

    Args:
        weights: (T, rows, columns), T at least the number of words.
        gates: (T,) beta.
        seen: the part of the photograph that the encoder saw, in its pixels.
    """
    small, seen = shrink(photograph, seen, LONGEST_SIDE)
    rows = math.ceil((len(words) + 1) / MOST_COLUMNS)
    columns = math.ceil((len(words) + 1) / rows)
    panel = (2.0, 2.0 * small.height / small.width + 0.3)
    figure, axes = plt.subplots(
        rows, columns, figsize=(panel[0] * columns, panel[1] * rows + 0.4), layout="constrained", squeeze=False
    )
    figure.suptitle(" ".join(words), fontsize=13)
    for axis in axes.flat:
        axis.axis("off")
    axes.flat[0].imshow(small)
    for axis, title, step in zip(axes.flat[1:], titles(words, gates), weights, strict=False):
        axis.imshow(darken(small, step, seen))
        axis.set_title(title, fontsize=10)
    return figure


def titles(words: Sequence[str], gates: np.ndarray) -> list[str]:
    """Return each word with its beta; without beta for a model that has no gate."""
    if (gates[: len(words)] >= UNGATED).all():
        return list(words)
    return [f"{word}  \N{GREEK SMALL LETTER BETA} {beta:.2f}" for word, beta in zip(words, gates, strict=False)]


WIDTH, LINE = 160, 20
"""Width of a cell and height of the line above it, in pixels."""

COLUMNS = 6


def draw_panel(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box
) -> Image.Image:
    """Return one image: the photograph, then a cell for each word with its map and beta, as in `draw_heatmaps`.

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
    """Return the font that comes with matplotlib."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")), 13)
