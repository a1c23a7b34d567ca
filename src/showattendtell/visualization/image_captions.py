"""The captions of a photograph with their attention maps, as users get them; without waiting for matplotlib."""

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.types import Box, CaptionOutput

AHEAD = 2
"""Number of figures that may wait to be drawn; each holds a photograph in memory."""


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
        draw_picture(*self.as_drawn(), Path(path))

    def as_drawn(self) -> tuple[Image.Image, tuple[str, ...], np.ndarray, np.ndarray, Box]:
        """Return the arguments of `heatmap_figure`: photograph, words, attention, gates, and `seen` in pixels."""
        return self.photograph, self.words, self.attention, self.gates, self.seen.scaled(*self.photograph.size)

    def _repr_png_(self) -> bytes:
        """Return the figure that a notebook shows: a panel for each word with its map."""
        from showattendtell.visualization.heatmaps import encode, heatmap_figure

        return encode(heatmap_figure(*self.as_drawn()))

    def __str__(self) -> str:
        return self.caption

    def __repr__(self) -> str:
        return f"<{self.name}: {self.caption}>"


@contextmanager
def drawing() -> Iterator[Callable[..., None]]:
    """Draw figures in another process, which imports matplotlib while this one goes ahead.

    Yields a function with the arguments of `draw_picture` that returns at once; on exit all figures are written.
    Raises a `UserError` for a figure that could not be drawn, at a later call or on exit.
    """
    process = ProcessPoolExecutor(1, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    pictures: deque[Future[None]] = deque([process.submit(_warm_up)])

    def draw(*arguments: Any) -> None:
        pictures.append(process.submit(draw_picture, *arguments))
        while len(pictures) > AHEAD:
            pictures.popleft().result()

    try:
        yield draw
        for picture in pictures:
            picture.result()
    except BrokenProcessPool:
        raise UserError("the process that draws the pictures was killed, probably out of memory; try again") from None
    finally:
        process.shutdown(cancel_futures=True)


def _warm_up() -> None:
    """Start the process before its first figure."""


def draw_picture(*arguments: Any) -> None:
    """Call `draw_heatmaps` or, for a GIF or WebP, `draw_animation` with the same arguments."""
    from showattendtell.visualization.heatmaps import draw_animation, draw_heatmaps

    draw = draw_heatmaps if arguments[-1].suffix == ".png" else draw_animation
    draw(*arguments)


def picture_names(files: Sequence[Path]) -> list[str]:
    """Return a name without suffix for each image file: `photo` for `photo.jpg`. A repeated name becomes `photo-2`, or
    gets the next free number."""
    stems = {file.stem for file in files}
    names: list[str] = []
    for file in files:
        numbered = (f"{file.stem}-{number}" for number in count(2))
        free = (name for name in numbered if name not in stems and name not in names)
        names.append(next(free) if file.stem in names else file.stem)
    return names
