"""Drawing of figures in a separate process, so that captioning does not wait for matplotlib."""

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from showattendtell.errors import UserError

AHEAD = 2
"""Number of figures that may wait to be drawn; each holds a photograph in memory."""


@contextmanager
def drawing() -> Iterator[Callable[..., None]]:
    """Yield a function with the arguments of `draw_picture` that returns at once; on exit all figures are written.

    Raises a `UserError` for a figure that could not be drawn, at a later call or on exit.
    """
    process = ProcessPoolExecutor(1, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    pictures: deque[Future[None]] = deque([process.submit(_get_ready)])

    def draw(*what: Any) -> None:
        pictures.append(process.submit(draw_picture, *what))
        while len(pictures) > AHEAD:
            pictures.popleft().result()

    try:
        yield draw
        for picture in pictures:
            picture.result()
    except BrokenProcessPool:
        raise UserError("the process that draws the pictures was killed, as for lack of memory; try again") from None
    finally:
        process.shutdown(cancel_futures=True)


def _get_ready() -> None:
    pass


def draw_picture(*what: Any) -> None:
    """Call `draw_heatmaps` or, for a GIF or WebP, `draw_animation` with the same arguments."""
    from showattendtell.visualization.animation import draw_animation
    from showattendtell.visualization.heatmaps import draw_heatmaps

    draw = draw_heatmaps if what[-1].suffix == ".png" else draw_animation
    draw(*what)


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
