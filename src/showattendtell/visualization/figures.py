"""Figures of runs, and their fonts: DejaVu Sans, and for characters that it lacks, such as Chinese, other
fonts of the system."""

import csv
import os
import warnings
from functools import cache, lru_cache
from io import BytesIO
from operator import itemgetter
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from PIL import ImageFont
from rich.console import Console

from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write, write_errors

KINDS = ("png", "jpg", "jpeg", "tif", "tiff", "pdf", "svg")
"""Suffixes of pictures that do not move; gif and webp are animations."""


def encode(figure: Figure, suffix: str = ".png") -> bytes:
    """Return the image file of a figure; raise `UserError` for a suffix that matplotlib cannot write."""
    content, kind = BytesIO(), suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UserError(f"a picture cannot be written as '{suffix}'; choose one of {', '.join(KINDS)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `fonts` has reported them
        figure.savefig(content, format=kind)
    return content.getvalue()


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


FONT = "SHOWATTENDTELL_FONT"
"""Environment variable with the file or the name of a font that is preferred to all others."""


class FontFinder:
    """Finds fonts with outlines by the characters that they have. Bitmap fonts, as for colored emoji, are not used."""

    def __init__(self) -> None:
        self.files = [Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")]
        self._missing: set[str] = set()
        if preferred := os.environ.get(FONT):
            self.files.insert(0, find_font(preferred))

    def covering(self, text: str) -> list[Path]:
        """Return the files of fonts, in the order of preference, for all characters of the text that any font has.

        Prints a note when it first meets a character that no font has.
        """
        needed = set(filter(str.isprintable, text)) - self._missing - {" "}
        needed = needed.difference(*map(characters, self.files))
        if needed:
            coverage = {file: characters(file) & needed for file in map(Path, font_manager.findSystemFonts())}
            # those that have the most come first; of a family rather the regular one
            for file in sorted(
                coverage, key=lambda file: (-len(coverage[file]), "regular" not in file.stem.lower(), file)
            ):
                if coverage[file] & needed:
                    self.files.append(file)
                    needed -= coverage[file]
        if needed and not self._missing:
            note = (
                f"note: no font has {' '.join(sorted(needed)[:5])}, which figures show as boxes; install one, such as "
                f"Noto Sans CJK or Symbola, or name one by {FONT}=NAME"
            )
            Console(stderr=True, highlight=False).print(note, style="yellow", soft_wrap=True)
        self._missing |= needed
        return self.files


finder = cache(FontFinder)


def find_font(name: str) -> Path:
    """Return the file of a font by its file or name; raise `UserError` if there is none."""
    if Path(name).is_file():
        return Path(name)
    try:
        return Path(font_manager.findfont(name, fallback_to_default=False))
    except ValueError:
        raise UserError(f"{FONT}={name}: no such font; give the file or the name of an installed font") from None


@lru_cache(maxsize=16)
def characters(file: Path) -> set[str]:
    """Return the characters that a font has; none for a bitmap font and a file that cannot be read."""
    try:
        font = FT2Font(str(file))
    except (OSError, RuntimeError):
        return set()
    return set(map(chr, font.get_charmap())) if font.scalable else set()


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
    file = max(finder().covering(text), key=lambda file: len(characters(file) & set(text)))
    return ImageFont.truetype(str(file), size)
