"""Dashboard loggers that never abort or block a run."""

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
"""Time limits in seconds for a dashboard to open, to accept data, and to upload the rest at the end."""


class ImagePanel(NamedTuple):
    """An image, its generated caption, its reference captions, and a picture of the attention at each word if the image
    file is there."""

    image: str
    caption: str
    references: tuple[str, ...]
    picture: Image.Image | None


class Histogram(NamedTuple):
    """Counts of values (N,) between edges (N + 1,)."""

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]


class DashboardBackend(ABC):
    """A run on a dashboard. Any method may raise, or never return."""

    id = ""
    """Id of the run on the dashboard, if it needs one."""

    @abstractmethod
    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Add points to the curves of metrics."""

    @abstractmethod
    def log_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        """Show generated captions of some images."""

    @abstractmethod
    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """Show distributions by name."""

    @abstractmethod
    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        """Upload the best checkpoint with its files, and the metrics of its validation."""

    @abstractmethod
    def close(self, succeeded: bool) -> str:
        """Wait for pending uploads; return a message for the user."""

    @abstractmethod
    def abandon(self) -> None:
        """Drop everything that would delay the end of this process."""


class Dashboard(Logger):
    """Logger that protects a run from its dashboard.

    A call that raises or does not return in time is reported in one sentence and disables the dashboard for the rest of
    the run. A resumed run does not send data twice.

    Args:
        kind: name of the dashboard in messages and in checkpoints.
        open_board: called with the id of a resumed run, or an empty string.
        images: number of validation images that it shows.
        histograms: whether it shows distributions.
    """

    name, version = "", ""

    def __init__(
        self, kind: str, open_board: Callable[[str], DashboardBackend], images: int = 0, histograms: bool = False
    ):
        super().__init__()
        self.kind, self.images, self.histograms = kind, images, histograms
        self.id = ""
        self._open_board = open_board
        self._board: DashboardBackend | None = None
        self._shown: set[tuple[int, str]] = set()

    @rank_zero_only
    def open(self, shown: set[tuple[int, str]]) -> None:
        """Open the dashboard, or reopen it for the run `id`.

        Args:
            shown: steps and names of the metrics that it already has.
        """
        self._shown = shown
        self._board = self._within(OPENING, lambda: self._open_board(self.id))
        self.id = self._board.id if self._board else self.id

    def awaits(self, step: int) -> bool:
        """Return whether the dashboard takes entries of this step and has not passed it yet."""
        return self._board is not None and all(shown < step for shown, _ in self._shown)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        figures = {name: value for name, value in metrics.items() if (step, name) not in self._shown}
        if figures:
            self._show(lambda board: board.log_figures(figures, step))

    def log_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        """Show the first `images` panels."""
        if panels[: self.images]:
            self._show(lambda board: board.log_panels(panels[: self.images], step))

    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        if self.histograms and histograms:
            self._show(lambda board: board.log_histograms(histograms, step))

    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        self._show(lambda board: board.log_best(files, figures))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the dashboard receives the configuration when it is opened."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        outcome = self._show(lambda board: board.close(status == "success"), CLOSING)
        self._board = None
        if outcome:
            print(outcome)

    def _show(self, what: Callable[[DashboardBackend], Item], seconds: float | None = None) -> Item | None:
        board = self._board
        return self._within(seconds or SHOWING, lambda: what(board)) if board else None

    def _within(self, seconds: float, call: Callable[[], Item]) -> Item | None:
        """Return the result of the call; None if it raises or exceeds the time limit."""
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
    """Return or raise the result of the call; a `TimeoutError`, with the call abandoned, after the time limit."""
    outcome: Future[Item] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as fault:
            outcome.set_exception(fault)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)
