"""Pictures drawn by a process of their own, so that neither matplotlib nor its pictures are waited for."""

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
"""Pictures that may wait to be drawn; each holds a photograph in memory."""


@contextmanager
def drawing() -> Iterator[Callable[..., None]]:
    """Gives what draws as `draw_heatmaps` or, for a GIF or WebP, `draw_animation` does, but returns before; at the end
    all pictures are there.

    Raises a `UserError` for a picture that could not be drawn, later than it was asked for.
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
    import showattendtell.report.animation  # noqa: F401


def draw_picture(*what: Any) -> None:
    """As `draw_heatmaps` or, for a GIF or WebP, `draw_animation`, and with what they take."""
    from showattendtell.report.animation import draw_animation
    from showattendtell.report.heatmaps import draw_heatmaps

    draw = draw_heatmaps if what[-1].suffix == ".png" else draw_animation
    draw(*what)


def picture_names(files: Sequence[Path]) -> list[str]:
    """A name without suffix for each image file, `photo` for `photo.jpg`; the second of that name is `photo-2`, or with
    the next number that no file has."""
    stems = {file.stem for file in files}
    names: list[str] = []
    for file in files:
        numbered = (f"{file.stem}-{number}" for number in count(2))
        free = (name for name in numbered if name not in stems and name not in names)
        names.append(next(free) if file.stem in names else file.stem)
    return names
