"""What is shown of an epoch while it runs: figures of single steps, lines without a terminal, the progress bar."""

import io
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import rich
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.callbacks.progress import rich_progress
from pytorch_lightning.loggers import Logger
from rich.console import Console
from slow_cases import slow_after
from small_training import small_config, small_run
from test_exact_resume import Kills

from showattendtell.runtime.files import LAST
from showattendtell.training import progress
from showattendtell.training.callbacks import EpochReport
from showattendtell.training.loggers import Dashboard
from showattendtell.training.progress import SENT, ProgressBar, StepMetrics

pytestmark = pytest.mark.filterwarnings("ignore")


class Notes(Logger):
    """Writes down all figures."""

    name, version = "", ""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        assert step is not None
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...


class Board(Dashboard):
    """A dashboard of such notes, which are `written`; those of a run are built from its configuration."""

    kind = "the board"
    written: Notes
    settings: Mapping[str, Any]
    shown: list[int]
    """Steps of the histograms."""

    def start(self, folder: Path, settings: Mapping[str, Any]) -> Logger:
        Board.written, Board.settings, Board.shown = Notes(), settings, []
        return self.written

    def show_panels(self, *_: Any) -> None: ...

    def show_histograms(self, histograms: Any, step: int) -> None:
        Board.shown.append(step)

    def show_best(self, *_: Any) -> None: ...

    def close(self, succeeded: bool) -> str:
        return ""


def noted(*settings: str) -> DictConfig:
    """A configuration with that dashboard."""
    config = small_config(*settings)
    config.logger = {"board": {"_target_": f"{Board.__module__}.{Board.__qualname__}"}}
    return config


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWATTENDTELL_TRUST", Board.__module__)


class ByHand(Callback):
    """Losses and learning rates of the steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: lightning.Trainer, module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))


def steps() -> dict[int, dict[str, float]]:
    return {step: figures for step, figures in Board.written.lines if "train/loss_step" in figures}


def test_loggers_get_the_figures_of_every_nth_step_and_the_metrics_file_none(tmp_path: Path):
    by_hand = ByHand()
    settings = ["++trainer.log_every_n_steps=2", "schedule=cosine", "schedule.warmup=3"]
    small_run(noted(*settings), tmp_path, callbacks=[by_hand])
    assert list(steps()) == [1, 3, 5, 7, 9]
    for step, figures in steps().items():
        assert figures["train/loss_step"] == pytest.approx(by_hand.losses[step])
        assert figures["train/learning_rate"] == by_hand.rates[step]
        assert figures["train/images_per_second"] > 0
        assert 0.05 < figures["train/memory_gb"] < 100
    assert len(set(by_hand.rates)) > 5
    assert "loss_step" not in (tmp_path / "metrics.csv").read_text()


@pytest.mark.parametrize("settings", [[], ["trainer.accumulate_grad_batches=2", "trainer.val_check_interval=1"]])
def test_what_a_validation_shows_has_the_step_of_its_metrics(tmp_path: Path, settings: list[str]):
    """Also in the middle of a step of several batches."""
    config = noted("callbacks.early_stopping=null", *settings)
    config.logger.board.histograms = True
    small_run(config, tmp_path)
    assert Board.shown == [step for step, figures in Board.written.lines if "val/bleu4" in figures]
    assert len(Board.shown) == (10 if settings else 2)


def points() -> list[tuple[int, str]]:
    return [(step, name) for step, figures in Board.written.lines for name in figures if name != "epoch"]


@pytest.mark.parametrize("kept", slow_after(1, ["05-validation", "07"]))
def test_a_resumed_run_logs_nothing_twice(tmp_path: Path, kept: str):
    """It was killed after its eighth step, of which a checkpoint is a step or the half of an epoch behind."""
    config, whole, copies = noted("++trainer.log_every_n_steps=1"), tmp_path / "whole", tmp_path / "copies"
    small_run(config, whole, callbacks=[Kills(whole, copies)])
    undisturbed, killed = points(), copies / "08"
    before = {point for point in undisturbed if point[0] < 8}
    for name in (LAST, "previous.ckpt"):
        (killed / name).unlink(missing_ok=True)
    (copies / kept / LAST).rename(killed / LAST)
    assert (killed / SENT).read_text() == "7"
    small_run(config, killed, killed / LAST)
    assert set(points()) & before == set()
    assert {*points(), *before} == set(undisturbed)
    assert len(points()) == len(set(points()))


def test_dashboards_get_all_settings_with_their_defaults(tmp_path: Path):
    """Also those that no file of the configuration names."""
    config = noted("trainer.max_epochs=1")
    assert "betas" not in config.optimizer
    small_run(config, tmp_path)
    settings = Board.settings
    assert settings["optimizer"]["lr"] == 0.01
    assert settings["optimizer"]["betas"] == (0.9, 0.999)
    assert "log_every_n_steps" in settings["trainer"]
    assert settings["loss"].keys() > {"_target_", "doubly_stochastic_weight"}
    assert settings["callbacks"]["early_stopping"]["min_delta"] == 0.0
    assert "params" not in settings["optimizer"]
    assert "source" not in settings["data"]


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


@pytest.mark.parametrize("step", slow_after(1, [2.0, 4.0, 9.0]))
def test_without_a_terminal_a_line_comes_at_least_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: io.StringIO, step: float
):
    clock, printed = Clock(step), [1000.0]
    monkeypatch.setattr(progress, "time", clock)
    own = StepMetrics._print
    monkeypatch.setattr(StepMetrics, "_print", lambda self, line: printed.append(clock.now) or own(self, line))
    small_run(small_config("trainer.max_epochs=4"), tmp_path, callbacks=[Ticks(clock)])
    assert max(after - before for before, after in pairwise(printed)) <= 10
    lines = [line for line in console.getvalue().splitlines() if ": batch" in line or "validation, batch" in line]
    assert len(lines) == len(printed) - 1
    images = r"loss \d+\.\d{3}, learning rate [\d.e-]+, images/s [\d.]+"
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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is sent."""
    screen = io.StringIO()
    monkeypatch.setattr(rich, "_console", Console(file=screen, force_terminal=True, width=80, _environ={}))
    monkeypatch.setattr(rich_progress, "reconfigure", lambda: None)
    return screen


def test_the_bar_counts_epochs_from_one_and_the_report_is_printed_above_it(tmp_path: Path, terminal: io.StringIO):
    """On a terminal; what is left on its screen has whole lines."""
    small_run(small_config(), tmp_path)
    printed = terminal.getvalue()
    assert "epoch 1 of 2" in printed
    assert "epoch 2 of 2" in printed
    assert "Epoch 0" not in printed
    assert re.search(r"loss: \d+\.\d{3} images/s: \d+", printed)
    for number in (1, 2):
        assert re.search(rf"(\r|\x1b\[2K|\n)epoch   {number}: -log p per word [^\r\n]*\d s\n", printed)


def test_the_bar_reads_no_loss_more_often_than_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO
):
    """At most once a second, for a GPU is waited for."""
    clock, read = Clock(0.25), []
    monkeypatch.setattr(progress, "time", clock)
    shown = StepMetrics.describe
    monkeypatch.setattr(StepMetrics, "describe", lambda self: read.append(clock.now) or shown(self))
    small_run(small_config("trainer.max_epochs=4"), tmp_path, callbacks=[Ticks(clock)])
    assert len(read) > 3
    assert min(after - before for before, after in pairwise(read)) >= 1


def test_the_parts_stand_in_the_configuration():
    targets = [node["_target_"].rpartition(".")[2] for node in small_config().callbacks.values()]
    assert {kind.__name__ for kind in (StepMetrics, ProgressBar, EpochReport)} <= set(targets)
