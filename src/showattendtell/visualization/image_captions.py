"""The captions of a photograph with their attention maps, as users get them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from showattendtell.types import Box, CaptionOutput


@dataclass(frozen=True, eq=False)
class ImageCaptions:
    """The captions that a model generated for a photograph.

    The fields of the best caption are properties of this class.

    Args:
        name: file name of the photograph.
        photograph: upright RGB image.
        seen: the part of the photograph that the encoder sees, in fractions of its width and height.
        captions: best first, with words and with `attention` (T, rows, columns).
    """

    name: str
    photograph: Image.Image
    seen: Box
    captions: tuple[CaptionOutput[np.ndarray], ...]

    @property
    def best(self) -> CaptionOutput[np.ndarray]:
        return self.captions[0]

    @property
    def caption(self) -> str:
        return self.best.caption

    @property
    def words(self) -> tuple[str, ...]:
        return self.best.words

    @property
    def tokens(self) -> list[int]:
        return self.best.tokens

    @property
    def log_probs(self) -> np.ndarray:
        return self.best.log_probs

    @property
    def attention(self) -> np.ndarray:
        return self.best.attention

    @property
    def gates(self) -> np.ndarray:
        return self.best.gates

    @property
    def maps(self) -> np.ndarray:
        """Attention maps of the words on the photograph's pixels: (T, height, width), computed at every access.

        The peak of each map is 1. A map is 0 outside the part that the encoder sees.
        """
        from showattendtell.visualization.heatmaps import map_onto_photograph

        frame, (width, height) = self.seen.scaled(*self.photograph.size), self.photograph.size
        grids = self.attention[: len(self.words)]
        maps = [map_onto_photograph(grid, frame, width, height) for grid in grids]
        return np.stack(maps) if maps else np.zeros((0, height, width), np.float32)

    def save(self, path: str | Path) -> None:
        """Draw the caption: a panel for each word as `.png`, or an animation as `.gif` or `.webp`."""
        from showattendtell.visualization.drawing import draw_picture

        draw_picture(*self.as_drawn(), Path(path))

    def as_drawn(self) -> tuple[Image.Image, tuple[str, ...], np.ndarray, np.ndarray, Box]:
        """Return the arguments of `heatmap_figure`: photograph, words, attention, gates, and `seen` in pixels."""
        return self.photograph, self.words, self.attention, self.gates, self.seen.scaled(*self.photograph.size)

    def __str__(self) -> str:
        return self.caption

    def __repr__(self) -> str:
        return f"<{self.name}: {self.caption}>"
