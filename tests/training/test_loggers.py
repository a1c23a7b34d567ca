"""Loggers of a run: what they are given, also of single steps, and that no run ends by their errors."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import CSVLogger, Logger
from slow_cases import slow_after
from small_training import small_config, small_run

from showattendtell.config.compose import training_record
from showattendtell.config.schemas import TrainSettings
from showattendtell.errors import UserError
from showattendtell.runtime.files import METRICS
from showattendtell.settings import Node
from showattendtell.training.build import build_trainer
from showattendtell.training.progress import build_logger, open_loggers, without_errors

pytestmark = pytest.mark.filterwarnings("ignore")


class Notes(Logger):
    """Writes down all figures; from the second on, every call fails if it `breaks`."""

    name, version = "", ""
    made: ClassVar[list["Notes"]] = []

    def __init__(self, run_name: str, save_dir: Path, breaks: bool = False, refuses: bool = False) -> None:
        super().__init__()
        self.run_name, self.folder, self.breaks, self.refuses = run_name, save_dir, breaks, refuses
        self.lines: list[tuple[int | None, dict[str, float]]] = []
        self.settings: Mapping[str, Any] = {}
        self.ends: list[str] = []
        random.random()
        self.made.append(self)

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if self.breaks and self.lines:
            raise ConnectionResetError("Connection lost")
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        if self.refuses:
            raise RuntimeError("no server answers")
        self.settings = params

    def finalize(self, status: str) -> None:
        self.ends.append(status)


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWATTENDTELL_TRUST", Notes.__module__)
    monkeypatch.setattr(Notes, "made", [])


def noted(*settings: str, **arguments: Any) -> TrainSettings:
    """Settings with that logger."""
    node = Node(f"{Notes.__module__}.{Notes.__qualname__}", arguments)
    return replace(small_config(*settings), logger={"notes": node})


def build_notes(config: TrainSettings, folder: Path) -> None:
    node = config.logger["notes"]
    assert node
    build_logger("notes", node, training_record(config), folder)


def test_a_logger_that_breaks_is_reported_of_once_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small_run(noted(breaks=True), tmp_path)
    [notes] = Notes.made
    assert len(notes.lines) == 1
    assert notes.ends == []
    assert capsys.readouterr().err == (
        "warning: logger.notes is switched off for the rest of this run (Connection lost); the run itself continues, "
        "and metrics.csv has the figures of each epoch\n"
    )
    assert len((tmp_path / METRICS).read_text().splitlines()) == 1 + 4


def test_a_logger_that_cannot_begin_is_reported_before_training(tmp_path: Path):
    with pytest.raises(UserError, match=r"logger.notes: no server answers; --debug shows the traceback"):
        small_run(noted(refuses=True), tmp_path)


@pytest.mark.parametrize("method", ["log_metrics", "save", "finalize", "log_graph", "after_save_checkpoint"])
def test_no_call_of_lightning_raises(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CSVLogger, method, broken)
    logger = without_errors(CSVLogger(tmp_path), "csv")
    assert getattr(logger, method)(None) is None


def test_a_run_that_ends_before_training_closes_its_loggers(tmp_path: Path):
    config = noted()
    trainer, _ = build_trainer(config, tmp_path)
    with pytest.raises(UserError), open_loggers(config.logger, training_record(config), trainer):
        raise UserError("there is no such photograph")
    assert [notes.ends for notes in Notes.made] == [["failed"]]


def test_a_logger_is_given_the_folder_and_the_name_of_the_run(tmp_path: Path):
    before = random.getstate()
    build_notes(noted(), tmp_path / "shapes-soft/1")
    build_notes(noted(run_name="mine", save_dir="logs"), tmp_path)
    assert [(notes.run_name, notes.folder) for notes in Notes.made] == [
        ("shapes-soft/1", tmp_path / "shapes-soft/1"),
        ("mine", "logs"),
    ]
    assert random.getstate() == before


def test_loggers_get_all_settings_with_their_defaults(tmp_path: Path):
    """Also those that no file of the configuration names."""
    config = noted("trainer.max_epochs=1")
    assert "betas" not in config.optimizer.arguments
    build_notes(config, tmp_path)
    settings = Notes.made[0].settings
    assert settings["optimizer"]["lr"] == 0.01
    assert settings["optimizer"]["betas"] == (0.9, 0.999)
    assert "log_every_n_steps" in settings["trainer"]
    assert settings["loss"].keys() > {"_target_", "doubly_stochastic_weight"}
    assert settings["callbacks"]["early_stopping"]["min_delta"] == 0.0
    assert "params" not in settings["optimizer"]
    assert "source" not in settings["data"]


def test_a_run_of_one_batch_has_no_loggers(tmp_path: Path):
    small_run(noted("++trainer.fast_dev_run=true"), tmp_path)
    assert Notes.made == []


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
def test_any_logger_gets_the_figures_of_every_nth_step_and_the_metrics_file_none(tmp_path: Path, batches: int):
    """The loss is that of a batch, also if several are a step."""
    by_hand = ByHand()
    settings = ["trainer.log_every_n_steps=2", f"trainer.accumulate_grad_batches={batches}"]
    small_run(noted(*settings, "schedule=cosine", "schedule.warmup=3"), tmp_path, callbacks=[by_hand])
    [notes] = Notes.made
    steps = {step: figures for step, figures in notes.lines if step is not None and "train/loss_step" in figures}
    assert list(steps) == [1, 3, 5, 7, 9][: 5 if batches == 1 else 3]
    for step, figures in steps.items():
        assert figures["train/loss_step"] == pytest.approx(by_hand.losses[by_hand.last[step]])
        assert figures["train/learning_rate"] == by_hand.rates[step]
        assert figures["train/images_per_second"] > 0
        assert 0.05 < figures["train/memory_gb"] < 100
    assert len(set(by_hand.rates)) > 4
    assert "loss_step" not in (tmp_path / METRICS).read_text()
