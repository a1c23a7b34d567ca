from pathlib import Path

import pytest

from showattendtell.loggers import METRICS, MetricsFile, has_account


@pytest.fixture(autouse=True)
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_bare_machine_has_no_account():
    assert not has_account()


def test_a_key_in_the_environment_is_an_account(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert has_account()


def test_a_login_of_the_same_server_is_an_account(bare_home: Path, monkeypatch: pytest.MonkeyPatch):
    netrc = bare_home / ".netrc"
    netrc.write_text("machine wandb.example.org login user password secret\n")
    netrc.chmod(0o600)
    assert not has_account()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert has_account()


def test_the_log_has_a_row_for_each_time_and_a_column_for_each_figure(tmp_path: Path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"loss": 2.5, "epoch": 0}, step=3)
    log.save()
    assert (tmp_path / METRICS).read_text() == "epoch,loss,step\n0,2.5,3\n"
    log.log_metrics({"bleu": 0.1, "epoch": 1}, step=6)
    log.save()
    assert (tmp_path / METRICS).read_text() == "bleu,epoch,loss,step\n,0,2.5,3\n0.1,1,,6\n"
    assert [file.name for file in tmp_path.iterdir()] == [METRICS]
