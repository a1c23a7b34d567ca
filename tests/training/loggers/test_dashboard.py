import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from showattendtell.training.loggers import dashboard as board
from showattendtell.training.loggers.dashboard import Dashboard, DashboardBackend, Histogram, ImagePanel


class Notebook(DashboardBackend):
    """Writes down what it is shown; from `breaks` on every call fails, and with `hangs` none returns."""

    id = "number 7"

    def __init__(self, hangs: threading.Event | None = None):
        self.lines: list[object] = []
        self.breaks, self.hangs = False, hangs
        self.is_abandoned = False

    def _write(self, *line: object) -> None:
        if self.breaks:
            raise ConnectionResetError("Connection lost")
        if self.hangs:
            self.hangs.wait()
        self.lines.append(line)

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        self._write(dict(figures), step)

    def log_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        self._write([panel.image for panel in panels], step)

    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        self._write(list(histograms), step)

    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        self._write(list(files), dict(figures))

    def close(self, succeeded: bool) -> str:
        self._write("closed", succeeded)
        return "it is written down"

    def abandon(self) -> None:
        self.is_abandoned = True


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def dashboard(notebook: Notebook) -> Dashboard:
    opened = Dashboard("the notebook", lambda _: notebook, images=1, histograms=True)
    opened.open(set())
    return opened


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_what_is_shown_arrives_and_no_more_images_than_are_wanted(dashboard: Dashboard, notebook: Notebook):
    dashboard.log_metrics({"loss": 2.0}, 3)
    dashboard.log_panels([ImagePanel(name, "a dog", (), None) for name in ("a.jpg", "b.jpg")], 3)
    dashboard.finalize("success")
    assert notebook.lines == [({"loss": 2.0}, 3), (["a.jpg"], 3), ("closed", True)]
    assert dashboard.id == "number 7"


def test_a_board_that_breaks_is_told_of_once_and_left_alone(
    dashboard: Dashboard, notebook: Notebook, capsys: pytest.CaptureFixture[str]
):
    dashboard.log_metrics({"loss": 2.0}, 3)
    notebook.breaks = True
    for step in (6, 9):
        dashboard.log_metrics({"loss": 1.0}, step)
    dashboard.finalize("success")
    said = capsys.readouterr()
    assert said.err == (
        "warning: the notebook is switched off for the rest of this run (ConnectionResetError: Connection lost); the "
        "run itself goes on, and metrics.csv has all figures\n"
    )
    assert said.out == ""
    assert notebook.is_abandoned
    assert not dashboard.awaits(12)


def test_a_board_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, never: threading.Event, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(board, "SHOWING", 0.01)
    dashboard = Dashboard("the notebook", lambda _: Notebook(hangs=never))
    dashboard.open(set())
    for step in (1, 2, 3):
        dashboard.log_metrics({"loss": 1.0}, step)
    dashboard.finalize("success")
    assert capsys.readouterr().err.count("warning: the notebook is switched off") == 1


def test_a_board_that_cannot_be_opened_ends_no_run(capsys: pytest.CaptureFixture[str]):
    def refuse(_: str) -> DashboardBackend:
        raise PermissionError(13, "Permission denied", "wandb")

    dashboard = Dashboard("the notebook", refuse)
    dashboard.open(set())
    dashboard.log_metrics({"loss": 1.0}, 1)
    dashboard.finalize("failed")
    assert capsys.readouterr().err.count("PermissionError: [Errno 13] Permission denied: 'wandb'") == 1


def test_a_run_that_goes_on_shows_nothing_twice(notebook: Notebook):
    dashboard = Dashboard("the notebook", lambda _: notebook)
    dashboard.open({(5, "val/bleu4"), (5, "epoch")})
    assert [step for step in (4, 5, 6) if dashboard.awaits(step)] == [6]
    dashboard.log_metrics({"val/bleu4": 1.0, "epoch": 0}, 5)
    dashboard.log_metrics({"train/loss": 2.0, "epoch": 0}, 5)
    dashboard.log_metrics({"val/bleu4": 3.0, "epoch": 1}, 10)
    assert notebook.lines == [({"train/loss": 2.0}, 5), ({"val/bleu4": 3.0, "epoch": 1}, 10)]


def test_the_id_of_the_run_that_goes_on_is_asked_for(notebook: Notebook):
    asked = []
    dashboard = Dashboard("the notebook", lambda number: asked.append(number) or notebook)
    dashboard.id = "number 6"
    dashboard.open(set())
    assert asked == ["number 6"]
