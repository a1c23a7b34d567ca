"""Training that is killed, stopped or runs out of disk space, and the commands that resume it."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from runs import STEPWISE, Run, Start, assert_done, assert_same_end, kill, wait_for_steps


def runs_of(folder: Path) -> list[Path]:
    return sorted((folder / "runs/shapes-soft").glob("*"))


def test_the_same_command_continues_after_a_kill_and_ends_as_if_there_had_been_none(
    start: Start, uninterrupted: Path, folder: Path
):
    command = ["train", *STEPWISE, "resume=true"]
    known = runs_of(folder)

    def own() -> Path | None:
        return next((run for run in runs_of(folder) if run not in known), None)

    running = start(*command)
    wait_for_steps(running, own, 6)
    assert kill(running).status == -signal.SIGKILL
    done = assert_done(start(*command).finish())
    run = own()
    assert run
    assert f"{run.relative_to(folder)} resumes after step " in done.out
    assert runs_of(folder) == [*known, run]
    assert_same_end(uninterrupted, run)

    again = assert_done(start(*command).finish())
    assert f"{run.relative_to(folder)} is finished" in again.out
    assert "evaluate checkpoint=" in again.out
    assert runs_of(folder) == [*known, run]


@pytest.mark.slow
def test_a_scheduler_that_stops_all_processes_of_a_run_does_not_lose_the_step(
    start: Start, run: Run, uninterrupted: Path, folder: Path
):
    """The one that reads the grids, too."""
    rare = [*STEPWISE, "checkpoint_interval_minutes=60", "data.num_workers=1", "hydra.run.dir=runs/group"]
    running = start("train", *rare, first="os.setsid()")
    while running.process.is_alive() and "epoch   1" not in running.out.read_text():
        time.sleep(0.01)
    os.killpg(running.process.pid, signal.SIGTERM)
    stopped = running.finish()
    assert stopped.status == 143
    assert "stopped after step" in stopped.err
    assert_done(run("train", "resume=runs/group"))
    assert_same_end(uninterrupted, folder / "runs/group")


@pytest.mark.slow
def test_a_sweep_continues_where_it_was(start: Start, uninterrupted: Path, folder: Path):
    """The first job is finished, the second was killed, the third had not begun."""
    small = [*STEPWISE, "trainer.max_epochs=1", "trainer.limit_train_batches=2"]
    command = ["train", "-m", *small, "seed=5,6,7", "resume=true"]

    def jobs() -> list[Path]:
        return sorted((folder / "runs/shapes-sweep").glob("*/*/last.ckpt"))

    running = start(*command)
    while running.process.is_alive() and len(jobs()) < 2:
        time.sleep(0.002)
    assert kill(running).status == -signal.SIGKILL
    begun = jobs()
    assert len(begun) == 2
    assert_done(start(*command).finish())
    newest = max((folder / "runs/shapes-sweep").iterdir())
    said = [(newest / str(number) / "train.log").read_text() for number in range(3)]
    assert f"{begun[0].parent.relative_to(folder)} is finished" in said[0]
    assert "resumes after step" in said[1]
    assert "to resume; a new one starts in" in said[2]
    assert len(jobs()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [["attention=soft"], ["attention=hard", "attention.num_samples=2"], ["callbacks=ema", "callbacks.ema.decay=0.9"]],
    ids=str,
)
def test_twenty_kills_at_random_change_nothing(start: Start, run: Run, prepared: Any, folder: Path, choice: list[str]):
    """At any moment: while it is set up, in a step, in validation, while a checkpoint is written."""
    settings = ["trainer.max_epochs=40", "callbacks.early_stopping.patience=99", "resume=true"]
    command = ["train", *STEPWISE, *choice, *settings]
    whole, killed, dice = f"runs/whole-{choice[0]}", f"runs/soak-{choice[0]}", random.Random(0)
    assert_done(run(*command, f"hydra.run.dir='{whole}'"))
    done, kills = None, 0
    while not done:
        running = start(*command, f"hydra.run.dir='{killed}'")
        if kills == 20:
            done = assert_done(running.finish())
            break
        wait_for_steps(running, lambda: folder / killed, dice.randrange(0, 12))
        time.sleep(dice.uniform(0, 0.1))
        assert kill(running).status == -signal.SIGKILL, "the run has ended before it was killed often enough"
        kills += 1
    assert_same_end(folder / whole, folder / killed)
