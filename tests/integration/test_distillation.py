"""Training on captions that a model wrote, by the commands of the documentation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import TINY, Run, assert_done
from slow_cases import slow_after

from showattendtell.config.compose import compose
from showattendtell.errors import UserError


def splits_of(file: Path) -> dict[str, Any]:
    splits: dict[str, Any] = torch.load(file, weights_only=True)["showattendtell"]["splits"]
    return splits


@pytest.fixture(scope="session")
def written(run: Run, checkpoint: Path) -> str:
    settings = ["split=train", "metrics=[bleu]", "decoding.allow_unk=false", "decoding.min_length=3"]
    assert_done(run("evaluate", f"checkpoint={checkpoint}", *settings, "output=runs/train.json"))
    return "distillation.captions=runs/train.json"


@pytest.mark.parametrize(("keep", "captions"), slow_after(1, [("true", 240), ("false", 40)]))
def test_generated_captions_are_added_to_the_reference_captions_or_replace_them(
    run: Run, written: str, checkpoint: Path, folder: Path, keep: str, captions: int
):
    short = [*TINY, "trainer.limit_train_batches=1", f"distillation.keep_references={keep}"]
    place = f"runs/distilled-{captions}"
    done = assert_done(run("train", *short, written, f"hydra.run.dir={place}"))
    [row] = [line for line in done.out.splitlines() if "│ train" in line]
    assert [int(cell) for cell in row.split("│")[2:4]] == [40, captions]
    ours, theirs = splits_of(folder / place / "best.ckpt"), splits_of(checkpoint)
    assert [split for split in theirs if ours[split] != theirs[split]] == ["train"]


def test_a_file_instead_of_a_setting_is_refused():
    with pytest.raises(UserError, match="distillation.NAME=value"):
        compose("train", ["distillation=runs/train.json"])
