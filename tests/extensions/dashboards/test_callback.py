"""What a run shows on wandb."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from slow_cases import slow_after
from small_training import small_config, small_run
from wandb_files import artifact_of, figures_of, read_wandb

from showattendtell.extensions.dashboards import wandb
from showattendtell.extensions.dashboards.wandb import CaptionPanels
from showattendtell.runtime.files import BEST

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small data set has none."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "open_image", lambda _: Image.new("RGB", (400, 200), "red"))


@pytest.mark.parametrize(
    "settings", slow_after(1, [[], ["trainer.accumulate_grad_batches=2", "trainer.val_check_interval=1"]])
)
def test_what_a_validation_shows_has_the_step_of_its_metrics(tmp_path: Path, settings: list[str]):
    """Also in the middle of a step of several batches."""
    small_run(
        small_config("logger=wandb", "logger.wandb.images=1", "callbacks.early_stopping=null", *settings), tmp_path
    )
    [part] = (tmp_path / "wandb").glob("offline-run-*")
    records = read_wandb(part)
    rows = figures_of(records)
    shown = [row["step"] for row in rows if "val/captions.nrows" in row]
    assert shown == [row["step"] for row in rows if "val/bleu4" in row]
    assert len(shown) == (10 if settings else 2)
    files, *_ = artifact_of(records, "run_table")
    content = json.loads(files["val/captions.table.json"].read_text())
    assert content["columns"] == wandb.COLUMNS
    [[photograph, name, caption, cider, confidence, references, picture]] = content["data"]
    with Image.open(files[photograph["path"]]) as image:
        assert image.size == (320, 160)
        assert np.allclose(np.asarray(image), (255, 0, 0), atol=4)
    with Image.open(files[picture["path"]]) as image:
        assert image.width == 160 * min(6, len(caption.split()) + 1)
    assert name == "0.png"
    assert cider >= 0
    assert 0 < confidence < 1
    assert references


def test_captions_are_those_of_the_averaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Though the callback of the average comes first."""
    shown = []

    def rows(_: Any, module: Any, *__: Any) -> list[Any]:
        shown.append(deepcopy(module.state_dict()))
        return []

    monkeypatch.setattr(CaptionPanels, "_rows", rows)
    small_run(small_config("logger=wandb", "callbacks=ema", "trainer.max_epochs=1"), tmp_path)
    [weights] = shown
    torch.testing.assert_close(weights, torch.load(tmp_path / BEST, weights_only=True)["state_dict"], rtol=0, atol=0)
