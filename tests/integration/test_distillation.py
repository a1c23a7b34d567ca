"""Training on captions that a model wrote, by the commands of the documentation."""

from pathlib import Path
from typing import Any

import torch
from runs import TINY, Run, assert_done, assert_error


def splits_of(file: Path) -> dict[str, Any]:
    splits: dict[str, Any] = torch.load(file, weights_only=True)["showattendtell"]["splits"]
    return splits


def test_generated_captions_replace_the_reference_captions_or_are_added_to_them(
    run: Run, checkpoint: Path, folder: Path
):
    settings = ["split=train", "metrics=[bleu]", "decoding.allow_unk=false", "decoding.min_length=3"]
    assert_done(run("evaluate", f"checkpoint={checkpoint}", *settings, "output=runs/train.json"))
    for keep, captions in (("false", 40), ("true", 240)):
        short = [*TINY, "trainer.limit_train_batches=1", f"distillation.keep_references={keep}"]
        place = f"runs/distilled-{captions}"
        done = assert_done(run("train", *short, "distillation.captions=runs/train.json", f"hydra.run.dir={place}"))
        [row] = [line for line in done.out.splitlines() if "│ train" in line]
        assert [int(cell) for cell in row.split("│")[2:4]] == [40, captions]
        ours, theirs = splits_of(folder / place / "best.ckpt"), splits_of(checkpoint)
        assert [split for split in theirs if ours[split] != theirs[split]] == ["train"]


def test_a_file_instead_of_a_setting_is_refused(run: Run):
    assert_error(run("train", *TINY, "distillation=runs/train.json"), "distillation.NAME=value")
