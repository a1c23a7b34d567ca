import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from wandb_files import artifact_of, figures_of, read_wandb

from showattendtell.training.loggers.dashboard import Histogram, ImagePanel
from showattendtell.training.loggers.wandb import COLUMNS, RunLabel, code, has_account, open_wandb


@pytest.fixture(autouse=True)
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR", "WANDB_DATA_DIR"):
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


def test_a_run_without_an_account_is_read_back_by_wandb_with_all_that_it_was_shown(tmp_path: Path):
    label = RunLabel("captions", "soft/1", "soft or hard", ("flickr8k", "lstm"))
    (tmp_path / "best.ckpt").write_bytes(b"weights")
    board = open_wandb(tmp_path, label, {"decoder": {"width": 512}}, "")
    board.log_figures({"val/bleu4": 12.5, "epoch": 0}, 10)
    picture = Image.new("RGB", (30, 20), "red")
    board.log_panels(
        [ImagePanel("dog.jpg", "a dog runs", ("a dog", "it runs"), picture), ImagePanel("x", "y", (), None)], 10
    )
    board.log_histograms({"entropy": Histogram(np.array([3, 1]), np.array([0.0, 1.0, 2.0]))}, 10)
    board.log_best([tmp_path / "best.ckpt"], {"val/bleu4": 12.5})
    told = board.close(True)

    [part] = (tmp_path / "wandb").glob("offline-run-*")
    assert told == f"the wandb run is kept offline; upload it with\n  wandb sync {part}"
    records = read_wandb(part)
    [run] = records["run"]
    assert (run["project"], run["display_name"], run["run_group"]) == ("captions", "soft/1", "soft or hard")
    assert (run["run_id"], run["tags"]) == (board.id, ["flickr8k", "lstm"])
    assert run["config"]["update"]["decoder"] == {"width": 512}
    assert run["config"]["update"]["code"] == code()
    figures, table, histogram = figures_of(records)
    assert figures == {"val/bleu4": 12.5, "epoch": 0, "step": 10}
    assert (table["val/captions.nrows"], table["step"]) == (2, 10)
    assert (histogram["entropy.values"], histogram["entropy.bins"]) == ([3, 1], [0, 1, 2])

    [files] = artifact_of(records, "run_table")
    content = json.loads(files["val/captions.table.json"].read_text())
    assert content["columns"] == list(COLUMNS)
    [dog, other] = content["data"]
    assert dog[:3] == ["dog.jpg", "a dog runs", "a dog\nit runs"]
    assert other == ["x", "y", "", None]
    with Image.open(files[dog[3]["path"]]) as image:
        assert image.size == (30, 20)
        assert np.allclose(np.asarray(image), (255, 0, 0), atol=4)
    assert all(tmp_path in file.parents for file in files.values())

    [best] = artifact_of(records, "model")
    assert best["best.ckpt"].read_bytes() == b"weights"


def test_a_run_that_goes_on_has_its_id_and_is_uploaded_with_its_first_part(tmp_path: Path):
    first = open_wandb(tmp_path, RunLabel("captions", "a", None, ()), {}, "")
    first.close(False)
    second = open_wandb(tmp_path, RunLabel("captions", "a", None, ()), {}, first.id)
    told = second.close(True)
    parts = sorted(map(str, (tmp_path / "wandb").glob(f"offline-run-*-{first.id}")))
    assert second.id == first.id
    assert told.endswith(f"wandb sync {' '.join(parts)}")


def test_a_run_whose_server_does_not_answer_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("showattendtell.training.loggers.wandb.ANSWERING", 2.0)
    board = open_wandb(tmp_path, RunLabel("captions", "a", None, ()), {}, "")
    assert "this run is kept offline" in capsys.readouterr().out
    assert "wandb sync" in board.close(True)


def test_the_code_is_told_by_version_and_commit():
    assert code()["version"]
    assert len(code().get("commit", "0" * 40).removesuffix("-dirty")) == 40
