"""Attention heatmaps: where the model looked at each word, on the photograph's pixels (Xu et al. 2015, Sec. 5.4), as a
matplotlib figure, as one image for loggers, and as an animation. Figures of runs and data sets."""

import csv
import math
import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter

from showattendtell.errors import UserError
from showattendtell.types import Box, Dataset
from showattendtell.visualization.fonts import families, pillow_font, right_to_left
from showattendtell.visualization.rendering import DARKEST, UNGATED
from showattendtell.visualization.result_files import write_bytes

MOST_COLUMNS = 6
LONGEST_SIDE = 480
DPI = 110

CELL, TITLE = 160, 20
"""Width of a cell of a panel and height of the line above it, in pixels."""

ANIMATED_SIDE = 400
WORD, WHOLE = 800, 1600
"""Milliseconds for which an animation shows a word, and the photograph alone."""

LETTERS, GAP, LINE, MARGIN = 16, 8, 26, 10
"""Of an animation in pixels: font size, space between words, line height, and margin around the caption."""

NUM_SAMPLES = 6
NUM_CAPTIONS = 2
"""Number of captions shown for a sample of a data set."""

PAPER, INK, QUIET, MARK = "#ffffff", "#1d1d1f", "#8a8a92", "#f7c95c"


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


def encode(figure: Figure, suffix: str = ".png", dpi: int = DPI) -> bytes:
    """Return the image file of a figure."""
    content = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `fonts` has reported them
        figure.savefig(content, format=suffix.removeprefix("."), dpi=dpi)
    return content.getvalue()


def draw_heatmaps(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box, path: Path
) -> None:
    """Write the figure of `heatmap_figure` to a file."""
    figure = heatmap_figure(photograph, words, weights, gates, seen)
    write_bytes(encode(figure, path.suffix), path, "output to another folder")


def heatmap_figure(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box
) -> Figure:
    """Return a figure with the photograph and its caption, then a panel for each word with its map and beta.

    Args:
        weights: (T, rows, columns), T at least the number of words.
        gates: (T,) beta.
        seen: the part of the photograph that the encoder saw, in its pixels.
    """
    small, seen = _shrink(photograph, seen, LONGEST_SIDE)
    rows = math.ceil((len(words) + 1) / MOST_COLUMNS)
    columns = math.ceil((len(words) + 1) / rows)
    panel = (2.0, 2.0 * small.height / small.width + 0.3)
    # Not pyplot, which would need a display, or change the plots of the user's notebook.
    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    caption = " ".join(words)
    family = families(caption)
    figure.suptitle(caption, fontsize=13, fontfamily=family, parse_math=False)
    for axis in axes.flat:
        axis.axis("off")
    axes.flat[0].imshow(small)
    for axis, title, step in zip(axes.flat[1:], titles(words, gates), weights, strict=False):
        axis.imshow(_darken(small, step, seen))
        axis.set_title(title, fontsize=10, fontfamily=family, parse_math=False)
    return figure


def titles(words: Sequence[str], gates: np.ndarray) -> list[str]:
    """Return each word with its beta; without beta for a model that has no gate."""
    if (gates[: len(words)] >= UNGATED).all():
        return list(words)
    return [f"{word}  \N{GREEK SMALL LETTER BETA} {beta:.2f}" for word, beta in zip(words, gates, strict=False)]


def draw_panel(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box
) -> Image.Image:
    """Return one image: the photograph, then a cell for each word with its map and beta.

    The arguments are those of `heatmap_figure`.
    """
    scale = CELL / photograph.width
    small = photograph.convert("RGB").resize((CELL, max(1, round(scale * photograph.height))))
    columns, height = min(MOST_COLUMNS, len(words) + 1), TITLE + small.height
    canvas = Image.new("RGB", (columns * CELL, math.ceil((len(words) + 1) / columns) * height), "white")
    canvas.paste(small, (0, TITLE))
    for cell, (title, step) in enumerate(zip(titles(words, gates), weights, strict=False), start=1):
        left, top = cell % columns * CELL, cell // columns * height
        canvas.paste(_darken(small, step, seen.scaled(scale, scale)), (left, top + TITLE))
        ImageDraw.Draw(canvas).text((left + 4, top + 2), title, "black", pillow_font(title, 13))
    return canvas


def draw_animation(
    photograph: Image.Image, words: Sequence[str], weights: np.ndarray, gates: np.ndarray, seen: Box, path: Path
) -> None:
    """Write a GIF or WebP, by the path's suffix, in an endless loop: the photograph, then each word with its map.

    The arguments are those of `draw_heatmaps`; beta is not shown.
    """
    small, seen = _shrink(photograph, seen, ANIMATED_SIDE)
    font, frames = pillow_font(" ".join(words), LETTERS), []
    placed, height = place_words(words, font, small.width)
    if right_to_left(words):
        placed = [(word, small.width - x - font.getlength(word), y) for word, x, y in placed]
    for current in range(-1, len(words)):  # the photograph alone, then a frame for each word: later words are dimmed
        frame = Image.new("RGB", (small.width, small.height + height), PAPER)
        frame.paste(small if current < 0 else _darken(small, weights[current], seen))
        canvas = ImageDraw.Draw(frame)
        for number, (word, x, y) in enumerate(placed):
            top = small.height + y
            if number == current:
                canvas.rectangle((x - 3, top - 2, x + font.getlength(word) + 3, top + LETTERS + 4), fill=MARK)
            canvas.text((x, top), word, fill=QUIET if 0 <= current < number else INK, font=font)
        frames.append(frame)
    times = [WHOLE, *[WORD] * len(words)]
    if path.suffix == ".gif":
        frames = [frame.quantize(dither=Image.Dither.FLOYDSTEINBERG) for frame in frames]
    content, kind = BytesIO(), path.suffix.removeprefix(".")
    frames[0].save(content, kind, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80)
    write_bytes(content.getvalue(), path, "output to another folder")


def place_words(
    words: Sequence[str], font: ImageFont.FreeTypeFont, width: int
) -> tuple[list[tuple[str, float, float]], int]:
    """Break the words into lines of at most `width` pixels, unless one word is wider.

    Returns:
        Each word with its upper left corner (x, y), and the total height.
    """
    x, y = float(MARGIN), float(MARGIN)
    placed: list[tuple[str, float, float]] = []
    for word in words:
        if placed and x + font.getlength(word) > width - MARGIN:
            x, y = float(MARGIN), y + LINE
        placed.append((word, x, y))
        x = x + font.getlength(word) + GAP
    return placed, int(y) + LINE + MARGIN


def _shrink(photograph: Image.Image, seen: Box, longest: int) -> tuple[Image.Image, Box]:
    """Scale the photograph and the part that the encoder saw down to a maximum length of its longest side."""
    scale = min(1.0, longest / max(photograph.size))
    size = (max(1, round(photograph.width * scale)), max(1, round(photograph.height * scale)))
    return photograph.resize(size), seen.scaled(scale, scale)


def _darken(photograph: Image.Image, weights: np.ndarray, seen: Box) -> Image.Image:
    """Darken the photograph where attention on the grid (rows, columns) is small."""
    light = map_onto_photograph(weights, seen, photograph.width, photograph.height)[..., np.newaxis]
    pixels = np.asarray(photograph, dtype=np.float32) * (DARKEST + (1 - DARKEST) * light)
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def read_metrics(path: Path) -> dict[str, dict[int, float]]:
    """Return each metric's value by epoch (from 1)."""
    metrics: dict[str, dict[int, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and row["epoch"] and name not in ("epoch", "step"):
                    metrics.setdefault(name, {})[int(row["epoch"]) + 1] = float(value)
    return metrics


def draw_curves(metrics: dict[str, dict[int, float]], path: Path) -> None:
    """Draw the training and validation loss per word (left) and BLEU-4 of the validation captions (right)."""
    figure = Figure(figsize=(9, 3.2))
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.16, top=0.9, wspace=0.15)
    left, right = figure.subplots(1, 2)
    for name, label in (("train/nll_per_word", "training"), ("val/nll_per_word", "validation")):
        points = metrics.get(name, {})
        left.plot(list(points), list(points.values()), marker=".", label=label)
    left.set(title="-log p per word", xlabel="epoch")
    left.legend()
    bleu = metrics.get("val/bleu4", {})
    right.plot(list(bleu), list(bleu.values()), marker=".", color="C2")
    if bleu:
        best = max(bleu, key=lambda epoch: bleu[epoch])
        right.annotate(f"{bleu[best]:.1f}", (best, bleu[best]), textcoords="offset points", xytext=(0, 5), ha="center")
    right.margins(y=0.15)
    right.set(title="BLEU-4 on validation, without brevity penalty", xlabel="epoch")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.xaxis.get_major_locator().set_params(integer=True)
    write_bytes(encode(figure, path.suffix, dpi=120), path, "hydra.run.dir to another folder")


def draw_data_sheet(dataset: Dataset, path: Path) -> None:
    """Draw a histogram of caption lengths by split above samples spread evenly over the largest split."""
    from showattendtell.data.images import open_image  # torch, which the process that draws heatmaps does without

    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.add_gridspec(3, NUM_SAMPLES // 2, height_ratios=(1, 1.2, 1.2))
    axis = figure.add_subplot(grid[0, :])
    for name, split in dataset.splits.items():
        counts = Counter(len(caption.words) for example in split for caption in example.captions)
        lengths = range(1, max(counts, default=1) + 1)
        shares = [100 * counts[length] / max(1, counts.total()) for length in lengths]
        axis.step(lengths, shares, where="mid", label=f"{name} ({counts.total():,})")
    axis.set(title=f"{dataset.name}: words per caption", ylabel="% of captions")
    axis.grid(alpha=0.3)
    axis.legend()
    largest = max(dataset.splits.values(), key=len)
    step = max(1, len(largest) // NUM_SAMPLES)
    for number, example in enumerate(largest[::step][:NUM_SAMPLES]):
        axis = figure.add_subplot(grid[1 + number // (NUM_SAMPLES // 2), number % (NUM_SAMPLES // 2)])
        axis.axis("off")
        axis.set_anchor("W")
        try:
            axis.imshow(open_image(Path(example.path)))
        except UserError:
            axis.text(0.5, 0.5, "cannot be read", ha="center")
        said = [caption.written or " ".join(caption.words) for caption in example.captions[:NUM_CAPTIONS]]
        lines = "\n".join(textwrap.shorten(sentence, 48, placeholder=" ...") for sentence in said)
        title = f"{example.image}\n{lines}"
        axis.set_title(title, fontsize=8, loc="left", fontfamily=families(title), parse_math=False)
    write_bytes(encode(figure, path.suffix, dpi=100), path, "cache to another place")
