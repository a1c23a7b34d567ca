"""What a dashboard shows of a run, and the logger that stands between the two: no run ends, or waits long, for one."""

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console

Item = TypeVar("Item")

OPENING, SHOWING, CLOSING = 90.0, 30.0, 360.0
"""Seconds that a dashboard has to begin, to take what it is shown, and to upload the rest at the end."""


class Panel(NamedTuple):
    """An image, the caption that was written for it, what people said of it, and a picture of where the model looked at
    each word, where the image file is there."""

    image: str
    caption: str
    references: tuple[str, ...]
    picture: Image.Image | None


class Histogram(NamedTuple):
    """How many values (N,) lie between edges (N + 1,)."""

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]


class Board(ABC):
    """A run on a dashboard. Any method may raise, or not return."""

    id = ""
    """Under which the dashboard knows the run, where it needs one."""

    @abstractmethod
    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Points of the figures' curves."""

    @abstractmethod
    def log_panels(self, panels: Sequence[Panel], step: int) -> None:
        """What was written for some images."""

    @abstractmethod
    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """Distributions by name."""

    @abstractmethod
    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        """The best checkpoint with what belongs to it, and the figures of its validation."""

    @abstractmethod
    def close(self, succeeded: bool) -> str:
        """Wait for what is still under way; what the user is told then."""

    @abstractmethod
    def abandon(self) -> None:
        """Leave behind nothing that the end of this process would wait for."""


class Dashboard(Logger):
    """A logger that asks its board for no more than it can give.

    What raises, or does not return in time, is told in one sentence and switches the board off for the rest of the run.
    A run that goes on does not show again what it has shown before.

    Args:
        kind: its name in sentences and in checkpoints.
        open_board: called with the id of the run that goes on, or an empty one.
        images: how many validation images it shows.
        histograms: whether it shows distributions.
    """

    name, version = "", ""

    def __init__(self, kind: str, open_board: Callable[[str], Board], images: int = 0, histograms: bool = False):
        super().__init__()
        self.kind, self.images, self.histograms = kind, images, histograms
        self.id = ""
        self._open_board = open_board
        self._board: Board | None = None
        self._shown: set[tuple[int, str]] = set()

    @rank_zero_only
    def open(self, shown: set[tuple[int, str]]) -> None:
        """Begin, or go on with the run `id`.

        Args:
            shown: steps and names of the figures that it has already.
        """
        self._shown = shown
        self._board = self._within(OPENING, lambda: self._open_board(self.id))
        self.id = self._board.id if self._board else self.id

    def awaits(self, step: int) -> bool:
        """Whether it takes what belongs to this step, and has not been there before."""
        return self._board is not None and all(shown < step for shown, _ in self._shown)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        figures = {name: value for name, value in metrics.items() if (step, name) not in self._shown}
        if figures:
            self._show(lambda board: board.log_figures(figures, step))

    def log_panels(self, panels: Sequence[Panel], step: int) -> None:
        """Show the first `images` of them."""
        if panels[: self.images]:
            self._show(lambda board: board.log_panels(panels[: self.images], step))

    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        if self.histograms and histograms:
            self._show(lambda board: board.log_histograms(histograms, step))

    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        self._show(lambda board: board.log_best(files, figures))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The board is opened with the run's configuration."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        told = self._show(lambda board: board.close(status == "success"), CLOSING)
        self._board = None
        if told:
            print(told)

    def _show(self, what: Callable[[Board], Item], seconds: float | None = None) -> Item | None:
        board = self._board
        return self._within(seconds or SHOWING, lambda: what(board)) if board else None

    def _within(self, seconds: float, call: Callable[[], Item]) -> Item | None:
        """What the call returns, or nothing where it does not do well."""
        try:
            return within(seconds, call)
        except Exception as fault:
            reason = f"{type(fault).__name__}: {fault}".strip(": ").splitlines()[0]
            if isinstance(fault, TimeoutError):
                reason = f"no answer in {seconds:.0f} seconds"
            Console(file=sys.stderr, highlight=False).print(
                f"warning: {self.kind} is switched off for the rest of this run ({reason}); the run itself goes on, "
                "and metrics.csv has all figures",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
            board, self._board = self._board, None
            if board:
                with suppress(Exception):
                    within(SHOWING, board.abandon)
            return None


def within(seconds: float, call: Callable[[], Item]) -> Item:
    """What the call returns or raises; a `TimeoutError` where it does neither in time, and is left behind."""
    outcome: Future[Item] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as fault:
            outcome.set_exception(fault)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)
