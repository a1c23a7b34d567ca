"""Runs on wandb without an account, without its server, or with a malformed key."""

from pathlib import Path

import pytest
import wandb

from showattendtell.extensions.dashboards.wandb import WandbDashboard


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "0" * 40, "malformed"])
def test_a_run_that_cannot_be_uploaded_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("showattendtell.extensions.dashboards.wandb.INIT_TIMEOUT", 2.0)
    wandb.teardown()  # wandb reads the environment once
    board = WandbDashboard(tmp_path)
    board.log_hyperparams({})
    board.finalize("success")
    said = capsys.readouterr().out
    assert ("this run is offline" in said) == bool(key)
    assert "wandb sync" in said
