"""What is shown of an epoch while it runs: figures of single steps, lines without a terminal, the progress bar."""

import io
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as lightning
import rich
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from rich.console import Console
from slow_cases import slow_after
from small_training import small_config, small_run

from showattendtell.metrics.means import perplexity
from showattendtell.runtime.files import METRICS
from showattendtell.settings import Node
from showattendtell.training import progress
from showattendtell.training.progress import MetricsFile, StepMetrics

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("nll", "expected"), [(0, 1), (1.5, 4.4816890703), (1e4, math.inf), (math.nan, math.nan)])
def test_perplexity_of_a_training_that_diverges_is_infinite(nll: float, expected: float):
    assert perplexity(nll) == pytest.approx(expected, nan_ok=True)


class Notes(Logger):
    """Writes down all figures."""

    name, version = "", ""
    lines: ClassVar[list[tuple[int | None, dict[str, float]]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...


class ByHand(Callback):
    """Losses and learning rates of the steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.last: list[int] = []
        """The last batch of each step."""

    def on_fit_start(self, trainer: lightning.Trainer, module: Any) -> None:
        step = module.training_step
        module.training_step = lambda *batch: self.losses.append(float(loss := step(*batch))) or loss

    def on_before_optimizer_step(self, trainer: lightning.Trainer, module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.last.append(len(self.losses) - 1)


@pytest.mark.parametrize("batches", slow_after(1, [2, 1]))
def test_any_logger_gets_the_figures_of_every_nth_step_and_the_metrics_file_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
):
    """The loss is that of a batch, also if several are a step."""
    monkeypatch.setenv("SHOWATTENDTELL_TRUST", Notes.__module__)
    monkeypatch.setattr(Notes, "lines", [])
    by_hand = ByHand()
    settings = ["trainer.log_every_n_steps=2", f"trainer.accumulate_grad_batches={batches}"]
    config = small_config(*settings, "schedule=cosine", "schedule.warmup=3")
    notes = Node(f"{Notes.__module__}.{Notes.__qualname__}")
    small_run(replace(config, logger={"notes": notes}), tmp_path, callbacks=[by_hand])
    steps = {step: figures for step, figures in Notes.lines if step is not None and "train/loss_step" in figures}
    assert list(steps) == [1, 3, 5, 7, 9][: 5 if batches == 1 else 3]
    for step, figures in steps.items():
        assert figures["train/loss_step"] == pytest.approx(by_hand.losses[by_hand.last[step]])
        assert figures["train/learning_rate"] == by_hand.rates[step]
        assert figures["train/images_per_second"] > 0
        assert 0.05 < figures["train/memory_gb"] < 100
    assert len(set(by_hand.rates)) > 4
    assert "loss_step" not in (tmp_path / "metrics.csv").read_text()


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
