"""Trainings that follow each other, and trainings that begin with a checkpoint, as users start them."""

import csv
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import TINY, Run, Start, assert_done, assert_error, kill, wait_for_steps, wait_until

from showattendtell.errors import UserError
from showattendtell.training.stages import plan_stages

SHORT = [*TINY, "trainer.limit_train_batches=3"]
CIDER = 'cider:["reward=cider","reward.max_length=12","trainer.max_epochs=2"]'
STAGES = [*SHORT, f"stages={{likelihood:[],{CIDER},mean:{{average:[likelihood,cider]}}}}"]


def weights(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)["state_dict"]


@pytest.fixture(scope="session")
def staged(run: Run, prepared: Any, folder: Path) -> Path:
    assert_done(run("train", *STAGES, "hydra.run.dir=runs/staged"))
    return folder / "runs/staged"


@pytest.mark.slow
def test_each_stage_is_a_run_that_begins_with_the_best_checkpoint_of_the_one_before(staged: Path, folder: Path):
    assert {entry.name for entry in staged.iterdir()} == {".hydra", "stages.json", "1-likelihood", "2-cider", "3-mean"}
    card = torch.load(staged / "2-cider/best.ckpt", weights_only=True)["showattendtell"]
    assert card["config"]["init_from"] == "runs/staged/1-likelihood/best.ckpt"
    assert card["config"]["reward"]["cider"] == 1.0
    with (staged / "2-cider/metrics.csv").open() as file:
        assert {"train/sampled_cider", "train/sampled_unended", "val/cider"} <= set(next(csv.reader(file)))


@pytest.mark.slow
def test_a_stage_averages_the_best_weights_of_those_before_it(staged: Path):
    first, second, mean = (weights(staged / name / "best.ckpt") for name in ("1-likelihood", "2-cider", "3-mean"))
    learned = [name for name in first if name.startswith("captioner.")]
    for name in learned:
        torch.testing.assert_close(mean[name], (first[name] + second[name]) / 2)
    assert not torch.equal(mean["captioner.decoder.word_scores.bias"], first["captioner.decoder.word_scores.bias"])


@pytest.mark.parametrize("stages", [{"cider": [], "mean": {"average": ["cidre"]}}, {"mean": {"average": ["cider"]}}])
def test_a_stage_averages_only_stages_before_it(stages: Any, tmp_path: Path):
    with pytest.raises(UserError, match="stages.mean.average: there is no stage cid.. before it"):
        list(plan_stages(stages, tmp_path, []))


@pytest.mark.slow
def test_stages_that_are_finished_are_passed_over(run: Run, staged: Path):
    before = {file: file.stat().st_mtime_ns for file in staged.glob("*/last.ckpt")}
    again = assert_done(run("train", *STAGES, "resume=true", "hydra.run.dir=runs/staged"))
    assert again.out.count("is finished") == 3
    assert {file: file.stat().st_mtime_ns for file in staged.glob("*/last.ckpt")} == before
    assert_error(run("train", *STAGES, "hydra.run.dir=runs/staged"), "has files of another run", "resume=true")
    assert_error(
        run("train", *STAGES, "seed=2", "resume=true", "hydra.run.dir=runs/staged"), "the stages of another command"
    )


def test_a_fault_in_a_later_stage_is_reported_before_the_first_begins(run: Run, folder: Path):
    wrong = 'stages.cider=["reward=cider","reward.num_sample=3"]'
    assert_error(
        run("train", "experiment=scst", *SHORT, wrong, "hydra.run.dir=runs/wrong"),
        "stage cider",
        "did you mean 'reward.num_samples'?",
    )
    assert not (folder / "runs/wrong/1-likelihood").exists()


@pytest.mark.slow
def test_stages_that_were_killed_continue_with_the_same_command(start: Start, run: Run, staged: Path, folder: Path):
    """Killed in the second stage: asked to stop, the training saves; killed at once, it does so all the same."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        stopped = folder / f"runs/stopped-{number.name}"
        settings = [*STAGES, "checkpoint_interval_minutes=0", f"hydra.run.dir={stopped}"]
        running = start("train", *settings)
        wait_for_steps(running, lambda stopped=stopped: stopped / "2-cider", 2)
        kill(running, number)
        while list(stopped.glob("2-cider/last.ckpt.*.tmp")):
            time.sleep(0.1)
        done = assert_done(run("train", *settings, "resume=true"))
        assert "1-likelihood is finished" in done.out
        assert_same_weights(staged, stopped)


def assert_same_weights(whole: Path, rest: Path) -> None:
    one, other = (weights(run / "2-cider/last.ckpt") for run in (whole, rest))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.slow
def test_cider_rises_and_captions_end_as_well_as_before(run: Run, folder: Path):
    """The second stage over its own start, on the validation images of a few hundred scenes."""
    sizes = ["dataset.train=400", "dataset.val=100", "dataset.test=10"]
    widths = ["decoder.hidden_dim=64", "decoder.embedding_dim=64", "attention.score.width=64"]
    stages = ['stages.likelihood=["trainer.max_epochs=6"]']
    stages += ['stages.cider=["reward=cider","trainer.max_epochs=6","optimizer.lr=5e-4"]']
    assert_done(run("train", "experiment=scst", *sizes, *widths, *stages, "hydra.run.dir=runs/gain"))
    start = max(validations(folder / "runs/gain/1-likelihood"), key=lambda row: row["val/bleu4"])
    found = max(validations(folder / "runs/gain/2-cider"), key=lambda row: row["val/cider"])
    assert found["val/cider"] > start["val/cider"] + 20
    assert found["val/bleu4"] > start["val/bleu4"]
    assert found["val/unended"] <= start["val/unended"]
    assert found["val/dangling"] <= start["val/dangling"]


def validations(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["val/cider"]]
    return [{name: float(value) for name, value in row.items() if value} for row in rows]


LAST_MOMENT = """#!/bin/sh
trap 'touch best.ckpt; exit 0' TERM
touch begun
while :; do sleep 0.05; done
"""
"""A training that is finished when the signal arrives."""

TWO_STAGES = """
import sys
from pathlib import Path
from showattendtell.training.stages import Stage, run_stage
sys.executable = "./last_moment"
run_stage(Stage("one", Path(), "train", []))
print("the next stage")
"""


def test_a_signal_at_the_end_of_a_stage_starts_no_other(start_code: Start, tmp_path: Path):
    (tmp_path / "last_moment").write_text(LAST_MOMENT)
    (tmp_path / "last_moment").chmod(0o755)
    running = start_code(TWO_STAGES, folder=tmp_path)
    wait_until((tmp_path / "begun").exists)
    running.process.terminate()
    done = running.finish()
    assert (done.status, done.out) == (143, "")
