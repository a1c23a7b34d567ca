"""A second training on rewards, which starts from the best checkpoint of a first one."""

import csv
from pathlib import Path

import pytest
from runs import Run, assert_done

SMALL = ["dataset.train=400", "dataset.val=100", "dataset.test=10", "trainer.max_epochs=6"]
SMALL += ["decoder.hidden_dim=64", "decoder.embedding_dim=64", "attention.score.width=64"]


@pytest.mark.slow
def test_cider_rises_and_captions_end_as_well_as_before(run: Run, folder: Path):
    """The second training over its own start, on the validation images of a few hundred scenes."""
    assert_done(run("train", *SMALL, "hydra.run.dir=runs/likelihood"))
    rewarded = ["init_from=runs/likelihood/best.ckpt", "reward=cider", "optimizer.lr=5e-4"]
    assert_done(run("train", *SMALL, *rewarded, "hydra.run.dir=runs/rewarded"))
    start = max(validations(folder / "runs/likelihood"), key=lambda row: row["val/bleu4"])
    found = max(validations(folder / "runs/rewarded"), key=lambda row: row["val/cider"])
    assert {"train/sampled_cider", "train/sampled_unended"} <= set().union(*rows(folder / "runs/rewarded"))
    assert found["val/cider"] > start["val/cider"] + 20
    assert found["val/bleu4"] > start["val/bleu4"]
    assert found["val/unended"] <= start["val/unended"]
    assert found["val/dangling"] <= start["val/dangling"]


def rows(run: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics; training and validation have one each in an epoch."""
    with (run / "metrics.csv").open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def validations(run: Path) -> list[dict[str, float]]:
    return [row for row in rows(run) if "val/cider" in row]
