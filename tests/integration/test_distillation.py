"""Training on captions that a model wrote, by the commands of the documentation."""

from pathlib import Path

import torch
from runs import TINY, Run, assert_done


def test_generated_captions_are_added_to_the_reference_captions(run: Run, checkpoint: Path, folder: Path):
    settings = ["split=train", "metrics=[bleu]", "decoding.allow_unk=false", "decoding.min_length=3"]
    assert_done(run("evaluate", f"checkpoint={checkpoint}", *settings, "output=runs/train.json"))
    line = [*TINY, "trainer.limit_train_batches=1", "hydra.run.dir=runs/distilled"]
    line += ["distillation.captions=runs/train.json", "distillation.keep_references=true"]
    done = assert_done(run("train", *line))
    [row] = [line for line in done.out.splitlines() if "│ train" in line]
    assert [int(cell) for cell in row.split("│")[2:4]] == [40, 240]
    files = (folder / "runs/distilled/best.ckpt", checkpoint)
    ours, theirs = (torch.load(file, weights_only=True)["showattendtell"]["splits"] for file in files)
    assert [split for split in theirs if ours[split] != theirs[split]] == ["train"]
