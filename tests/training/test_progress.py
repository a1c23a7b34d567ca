"""What is shown of an epoch while it runs: lines without a terminal, the speed; and the file of the metrics."""

import io
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rich
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from small_training import small_config, small_run

from showattendtell.metrics.means import perplexity
from showattendtell.runtime.files import METRICS
from showattendtell.training import progress
from showattendtell.training.progress import MetricsFile, StepMetrics

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("nll", "expected"), [(0, 1), (1.5, 4.4816890703), (1e4, math.inf), (math.nan, math.nan)])
def test_perplexity_of_a_training_that_diverges_is_infinite(nll: float, expected: float):
    assert perplexity(nll) == pytest.approx(expected, nan_ok=True)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed where there is no terminal."""
    printed = io.StringIO()
    monkeypatch.setattr(rich, "_console", Console(file=printed, width=200))
    return printed


class Clock:
    """A clock that goes on by `self.step` seconds at every batch."""

    def __init__(self, step: float):
        self.now, self.step = 1000.0, step

    def monotonic(self) -> float:
        return self.now


class Ticks(Callback):
    def __init__(self, clock: Clock):
        self.clock = clock
        self.times: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.clock.now += self.clock.step

    def on_validation_batch_start(self, *_: Any) -> None:
        self.clock.now += self.clock.step


def test_without_a_terminal_a_line_comes_about_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: io.StringIO
):
    clock, printed = Clock(4.0), [1000.0]
    monkeypatch.setattr(progress, "time", clock)
    own = progress.print_line
    monkeypatch.setattr(progress, "print_line", lambda line, style=None: printed.append(clock.now) or own(line, style))
    settings = ("trainer.max_epochs=4", "callbacks.step_metrics.seconds=10")
    small_run(small_config(*settings), tmp_path, callbacks=[Ticks(clock)])
    assert max(after - before for before, after in pairwise(printed)) <= 12
    lines = [line for line in console.getvalue().splitlines() if ": batch" in line or "validation, batch" in line]
    images = r"loss per word \d+\.\d{3}, perplexity [\d.]+, learning rate [\d.e-]+, images/s [\d.]+"
    for line in lines:
        assert re.fullmatch(rf"epoch [1-4]: (batch \d of 5 \(step \d+\), {images}|validation, batch \d of \d)", line)
    assert any(line.startswith("epoch 4: ") for line in lines)


def test_the_speed_counts_images_and_leaves_validation_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A batch has 4 captions, each of an image of its own or not, and takes 2 seconds."""
    clock, speeds = Clock(2.0), []
    monkeypatch.setattr(progress, "time", clock)

    measure = StepMetrics.on_train_batch_end

    def measure_and_note(self: StepMetrics, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        measure(self, trainer, module, outputs, batch, index)
        speeds.append((self.images_per_second, len(batch.content.images) / 2))

    monkeypatch.setattr(StepMetrics, "on_train_batch_end", measure_and_note)
    small_run(small_config("callbacks.step_metrics.seconds=1e9"), tmp_path, callbacks=[Ticks(clock)])
    assert len(speeds) == 10
    assert all(measured == pytest.approx(expected) for measured, expected in speeds)


def test_the_log_has_a_row_for_each_time_and_a_column_for_each_figure(tmp_path: Path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"loss": 2.5, "epoch": 0}, step=3)
    log.save()
    assert (tmp_path / METRICS).read_text() == "epoch,loss,step\n0,2.5,3\n"
    log.log_metrics({"bleu": 0.1, "epoch": 1}, step=6)
    log.save()
    assert (tmp_path / METRICS).read_text() == "bleu,epoch,loss,step\n,0,2.5,3\n0.1,1,,6\n"
    assert [file.name for file in tmp_path.iterdir()] == [METRICS]
