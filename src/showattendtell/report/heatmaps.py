"""Pictures of where a captioner looked at each word, on the photograph's own pixels (Xu et al. 2015, Sec. 5.4)."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from scipy.ndimage import gaussian_filter

from showattendtell.records import Box
from showattendtell.report.pages import DARKEST, UNGATED
from showattendtell.report.pictures import save_picture

MOST_COLUMNS = 6
LONGEST_SIDE = 480
DPI = 110


def map_onto_photograph(weights: np.ndarray, seen: Box, width: int, height: int) -> np.ndarray:
    """Attention on the grid (rows, columns) as a map (height, width) on the photograph, 1 at its peak.

    The grid is enlarged by bicubic interpolation, smoothed by a Gaussian of half a region, which stands for the
    regions' overlapping fields of view, and laid on the part of the photograph that the encoder saw; elsewhere the map
    is 0.
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
    """The photograph, its longest side at most so many pixels, and the part that the encoder saw in those pixels."""
    scale = min(1.0, longest / max(photograph.size))
    size = (max(1, round(photograph.width * scale)), max(1, round(photograph.height * scale)))
    return photograph.resize(size), seen.scaled(scale, scale)


def darken(photograph: Image.Image, weights: np.ndarray, seen: Box) -> Image.Image:
    """The photograph, dark where attention on the grid (rows, columns) is small."""
    light = map_onto_photograph(weights, seen, photograph.width, photograph.height)[..., np.newaxis]
    pixels = np.asarray(photograph, dtype=np.float32) * (DARKEST + (1 - DARKEST) * light)
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def draw_heatmaps(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box, path: Path
) -> None:
    """The picture of `heatmap_figure` as a file."""
    figure = heatmap_figure(photograph, words, weights, gates, seen)
    save_picture(figure, path, "output to another folder", DPI)


def heatmap_figure(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box
) -> Figure:
    """One picture: the photograph with its caption, then a panel a word with the map and beta.

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
    """Each word with its beta, but for a model that has no gate."""
    if (gates[: len(words)] >= UNGATED).all():
        return list(words)
    return [f"{word}  \N{GREEK SMALL LETTER BETA} {beta:.2f}" for word, beta in zip(words, gates, strict=False)]
