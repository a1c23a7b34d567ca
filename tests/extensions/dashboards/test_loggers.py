"""Runs on wandb as its own reader finds them, and what becomes of them without an account."""

from pathlib import Path

import pytest
import wandb
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from slow_cases import slow_after
from wandb_files import figures_of, read_wandb

from showattendtell.extensions.dashboards.wandb import WandbDashboard


@pytest.fixture(autouse=True)
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR", "WANDB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    wandb.teardown()  # wandb reads the environment once
    return tmp_path


def test_a_run_without_an_account_is_read_back_by_wandb_with_all_that_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "compare/3"
    folder.mkdir(parents=True)
    choices = {"dataset": "shapes", "attention": "hard", "decoder": "lstm", "variant": "paper", "encoder": None}
    hydra = OmegaConf.create({"mode": RunMode.MULTIRUN, "runtime": {"choices": choices}})
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": hydra}))
    board = WandbDashboard(folder, "captions", tags=["mine"])
    board.log_hyperparams({"decoder": {"width": 512}})
    board.log_metrics({"val/bleu4": 12.5, "epoch": 0}, 10)
    board.finalize("success")

    [part] = (folder / "wandb").glob("offline-run-*")
    said = capsys.readouterr()
    assert said.out == f"the wandb run is kept offline; upload it with\n  wandb sync {part}\n"
    assert said.err == ""
    records = read_wandb(part)
    [run] = records["run"]
    assert (run["project"], run["display_name"], run.get("run_group")) == ("captions", "compare/3", "compare")
    assert (run["run_id"], run["tags"]) == (board.version, ["shapes", "hard", "lstm", "mine"])
    assert records["config"] == [{"update": {"decoder": {"width": 512}}}]
    assert figures_of(records) == [{"val/bleu4": 12.5, "epoch": 0, "step": 10}]


@pytest.mark.slow
@pytest.mark.parametrize("key", slow_after(1, ["0" * 40, "malformed"]))
def test_a_run_whose_server_does_not_answer_or_without_a_valid_key_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
):
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("showattendtell.extensions.dashboards.wandb.INIT_TIMEOUT", 2.0)
    board = WandbDashboard(tmp_path)
    board.log_hyperparams({})
    assert "this run is offline" in capsys.readouterr().out
    board.finalize("success")
    assert "wandb sync" in capsys.readouterr().out
