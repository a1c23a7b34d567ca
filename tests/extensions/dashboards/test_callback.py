"""What a run logs to its dashboards."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger
from small_training import small_config, small_run

from showattendtell.extensions.dashboards import callback
from showattendtell.extensions.dashboards.callback import DashboardCallback
from showattendtell.extensions.dashboards.loggers import Dashboard
from showattendtell.runtime.files import BEST

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
    """Steps of the captions."""

    def start(self, folder: Path, settings: Mapping[str, Any]) -> Logger:
        Board.written, Board.settings, Board.shown = Notes(), settings, []
        return self.written

    def show_panels(self, panels: Any, step: int) -> None:
        Board.shown.append(step)

    def show_best(self, *_: Any) -> None: ...

    def close(self, succeeded: bool) -> str:
        return ""


def noted(*settings: str) -> DictConfig:
    """A configuration with that dashboard."""
    config = small_config(*settings)
    config.logger = {"board": {"_target_": f"{Board.__module__}.{Board.__qualname__}"}}
    config.callbacks.dashboards = {"_target_": f"{DashboardCallback.__module__}.{DashboardCallback.__qualname__}"}
    return config


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWATTENDTELL_TRUST", Board.__module__)


@pytest.mark.parametrize("settings", [[], ["trainer.accumulate_grad_batches=2", "trainer.val_check_interval=1"]])
def test_what_a_validation_shows_has_the_step_of_its_metrics(tmp_path: Path, settings: list[str]):
    """Also in the middle of a step of several batches."""
    config = noted("callbacks.early_stopping=null", *settings)
    config.logger.board.images = 1
    small_run(config, tmp_path)
    assert Board.shown == [step for step, figures in Board.written.lines if "val/bleu4" in figures]
    assert len(Board.shown) == (10 if settings else 2)


def test_captions_are_those_of_the_averaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Though the callback of the average comes first."""
    shown = []
    monkeypatch.setattr(callback, "caption_panels", lambda module, *_: shown.append(deepcopy(module.state_dict())))
    config = noted("callbacks=ema", "trainer.max_epochs=1")
    config.logger.board.images = 1
    small_run(config, tmp_path)
    [weights] = shown
    torch.testing.assert_close(weights, torch.load(tmp_path / BEST, weights_only=True)["state_dict"], rtol=0, atol=0)


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
