"""Searches as users start, kill and share them."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import light_command
import light_search
import optuna
import postgres
import pytest
import test_launchers
from disks import fill, small_disk
from optuna.trial import FrozenTrial
from runs import TINY, Run, assert_done, wait_until

from showattendtell.extensions.search.study import FILE, open_storage, trials_of
from showattendtell.visualization.figures import read_metrics

start = partial(test_launchers.start, program=light_search.__file__)
SOON = "from showattendtell.extensions.search import study; study.HEARTBEAT, study.GRACE_PERIOD = 1, 10"


def trials(folder: Path, storage: str | None = None, name: str = "own") -> list[FrozenTrial]:
    opened = open_storage(storage, folder / f"runs/{name}-study")
    return trials_of(optuna.load_study(study_name=name, storage=opened))


def assert_all_different(trials: list[FrozenTrial]) -> None:
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 12
    assert len({tuple(trial.params.items()) for trial in trials}) == 12


def test_a_search_tries_every_value_also_after_a_trial_that_fails(run_light: Callable[..., Any], tmp_path: Path):
    run = f"runpy.run_path({light_search.__file__!r}, run_name='__main__')"
    line = ["train", "-m", "sweep=own", f"seed=20,21,{light_command.FAULTY}", "hydra.sweeper.n_trials=9"]
    line += ["hydra.sweeper.study_name=mine"]
    done = assert_done(run_light(run, *line, folder=tmp_path, SHOWATTENDTELL_CACHE=str(tmp_path)))
    ends = {trial.params["seed"]: trial.user_attrs.get("error", trial.value) for trial in trials(tmp_path, name="mine")}
    assert ends == {"20": 20.5, "21": 21.5, str(light_command.FAULTY): "a seed of 2 is a fault; take another"}
    assert "mine: 2 complete, 1 fail" in done.out


@pytest.fixture
def database() -> Iterator[str]:
    with postgres.server() as address:
        yield address


SMALL = ["dataset.train=200", "dataset.val=40", "dataset.test=10", "trainer.max_epochs=4"]


@pytest.mark.slow
def test_a_search_on_shapes_that_is_killed_halfway_finds_a_better_bleu_than_the_default(
    tmp_path: Path, start_forked: Any, run_forked: Run
):
    run = partial(run_forked, folder=tmp_path, SHOWATTENDTELL_CACHE=str(tmp_path / "cache"))
    assert_done(run("train", *SMALL, "hydra.run.dir=default"))
    default = max(read_metrics(tmp_path / "default/metrics.csv")["val/bleu4"].values())
    line = ["train", "-m", "sweep=shapes", *SMALL, "hydra.sweeper.seed=1"]
    started = start_forked(*line, first=SOON, folder=tmp_path, SHOWATTENDTELL_CACHE=str(tmp_path / "cache"))
    wait_until((tmp_path / "runs/shapes-study/6/last.ckpt").exists)
    os.kill(started.process.pid, signal.SIGKILL)
    started.finish()
    assert [trial.state.name for trial in trials(tmp_path, name="shapes")] == ["COMPLETE"] * 6 + ["RUNNING"]
    finished = [tmp_path / f"runs/shapes-study/{number}/.hydra/config.yaml" for number in range(6)]
    written = [file.read_bytes() for file in finished]
    assert_done(run(*line, first=SOON))
    assert [file.read_bytes() for file in finished] == written
    after = trials(tmp_path, name="shapes")
    logs = [(tmp_path / f"runs/shapes-study/{trial.number}/train.log").read_text() for trial in after]
    assert sum("resumes after step" in log for log in logs) == 1
    assert_all_different(after)
    assert max(trial.value for trial in after) > default


@pytest.mark.slow
def test_a_trial_that_the_median_ends_trains_for_fewer_epochs_and_its_time_is_reported(tmp_path: Path, run_forked: Run):
    run = partial(run_forked, folder=tmp_path, SHOWATTENDTELL_CACHE=str(tmp_path / "cache"))
    median = ["hydra/sweeper/pruner=median", "+hydra.sweeper.pruner.n_startup_trials=1", "hydra.sweeper.n_trials=4"]
    rates = "optimizer.lr=1e-2,5e-3,1e-6,1e-7"
    done = assert_done(run("train", "-m", "sweep=own", *SMALL, rates, *median, "hydra.sweeper.seed=3"))
    ended = {trial.params["optimizer.lr"]: trial for trial in trials(tmp_path)}
    pruned = [trial for trial in ended.values() if trial.state.name == "PRUNED"]
    assert pruned
    assert f"{len(pruned)} pruned" in done.out
    for trial in pruned:
        epochs = len(read_metrics(tmp_path / f"runs/own-study/{trial.number}/metrics.csv")["val/bleu4"])
        assert epochs == len(trial.intermediate_values) < 4


@pytest.mark.slow
@pytest.mark.parametrize("storage", [FILE, "database"])
def test_the_trial_of_a_worker_that_is_killed_is_repeated_by_the_other(
    tmp_path: Path, storage: str, request: pytest.FixtureRequest
):
    place = None if storage == FILE else request.getfixturevalue(storage)
    line = ["sweep=own", "seed=range(20, 200)", "decoder.dropout=interval(0.0, 0.5)", "hydra.sweeper.n_trials=12"]
    line += ["decoder.tie_embeddings=true,false", *([f"hydra.sweeper.storage={place}"] if place else [])]
    killed, other = (start(tmp_path, *line) for _ in range(2))
    try:
        wait_until(lambda: (tmp_path / "runs/own-study/3").exists())
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    out, err = other.communicate(timeout=900)
    assert other.returncode == 0, err
    assert_all_different(trials(tmp_path, place))
    assert "Traceback" not in out + err


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 300_000], ids=["nothing fits", "no checkpoint fits"])
def test_a_full_disk_ends_a_search_which_then_continues_with_the_same_trials(
    tmp_path: Path, run_forked: Run, room: int
):
    with small_disk(tmp_path / "disk", "16m") as disk:
        run = partial(run_forked, folder=tmp_path, first=SOON, SHOWATTENDTELL_CACHE=str(tmp_path / "cache"))
        line = ["train", "sweep=own", *TINY, "hydra.sweeper.n_trials=4", f"hydra.sweep.dir={disk}/study"]
        line += ["seed=range(1, 100)"]
        assert_done(run(*line, "hydra.sweeper.n_trials=1"))
        fill(disk, room)
        done = run(*line)
        assert done.status == 2
        assert "Traceback" not in done.err
        *_, error = done.err.splitlines()
        assert error.startswith("error: ")
        assert ("disk is full); free some space" if room == 0 else "No space left on device") in error
        (disk / "others").unlink()
        done = assert_done(run(*line))
        assert "own: 4 complete" in done.out
