"""What may become of a search or a sweep: a worker, its database or its cluster is gone, or a trial fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import light_command
import postgres
import pytest
from ray_cluster import OWN_RAY, free_ports, wait_until
from runs import TINY, Run, assert_done
from test_launchers import start, sweep
from test_study import TWELVE, assert_all_different, trials


@pytest.mark.slow
def test_the_trial_of_a_worker_that_is_killed_is_resumed_by_the_other(tmp_path: Path):
    line = ["seed=range(20, 200)", *TWELVE]
    killed, other = (start(tmp_path, *line) for _ in range(2))
    try:
        wait_until(lambda: (tmp_path / "runs/own-study/3").exists(), seconds=300)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    out, err = other.communicate(timeout=300)
    assert other.returncode == 0, err
    assert_all_different(trials(tmp_path))
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_a_trial_whose_loss_is_no_number_fails_and_the_search_continues(run_forked: Run, tmp_path: Path):
    rates = ["sweep=own", "optimizer.lr=0.01,1e30", "trainer.limit_train_batches=2"]
    done = assert_done(
        run_forked("train", "-m", *TINY, *rates, folder=tmp_path, SHOWATTENDTELL_CACHE=str(tmp_path / "cache"))
    )
    assert "Traceback" not in done.out + done.err
    ends = {trial.params["optimizer.lr"]: trial for trial in trials(tmp_path)}
    assert ends[0.01].state.name == "COMPLETE"
    assert ends[1e30].state.name == "FAIL"
    assert "lower optimizer.lr" in ends[1e30].user_attrs["fault"]


@pytest.mark.slow
@pytest.mark.parametrize("is_back", [True, False], ids=["is back before the trial ends", "is back later"])
def test_a_database_that_is_restarted_loses_no_trial(tmp_path: Path, is_back: bool):
    """One trial runs meanwhile."""
    with postgres.controlled_server() as (address, control):
        line = [
            f"seed={light_command.HELD},20,21",
            "sweep=own",
            f"hydra.sweeper.storage={address}",
            "hydra.sweeper.n_trials=3",
        ]
        process = start(tmp_path, *line)
        wait_until((tmp_path / "held").exists, seconds=300)
        control("stop")
        if is_back:
            control("start")
        (tmp_path / "go").touch()
        said = [] if is_back else [process.stderr.readline()]
        if not is_back:
            control("start")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "Traceback" not in out + err
        assert all(line.startswith("warning: the storage cannot be reached (") for line in said)
        ended = {trial.params["seed"]: trial.value for trial in trials(tmp_path, address)}
    assert ended == {light_command.HELD: 11.5, 20: 20.5, 21: 21.5}


@pytest.mark.slow
def test_a_cluster_that_is_gone_ends_the_sweep_which_continues_without_it(tmp_path: Path, short_folder: Path):
    """Its head is killed while a run is in progress. Ray itself ends the process of the sweep then, with a sentence."""
    line = ["hydra/launcher=ray", f"seed={light_command.HELD},20", "hydra.sweep.dir=runs/ray"]
    address, _ = free_ports(2)
    head = ray_head(address, short_folder, tmp_path)
    try:
        process = start(tmp_path, *line, RAY_ADDRESS=f"127.0.0.1:{address}")
        wait_until((tmp_path / "held").exists, seconds=300)
    finally:
        os.killpg(head.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "Traceback" not in out + err
    assert "Failed to connect to GCS" in err
    (tmp_path / "go").touch()
    done = sweep(tmp_path, *line[1:])
    assert done.returncode == 0, done.stderr
    assert "11.5" in done.stdout
    assert "20.5" in done.stdout


def ray_head(address: int, folder: Path, elsewhere: Path) -> subprocess.Popen[str]:
    """A Ray cluster of this machine, in a process group of its own."""
    options = ["--head", "--block", f"--port={address}", "--num-cpus=2", "--object-store-memory=80000000"]
    options += ["--include-dashboard=false", f"--temp-dir={folder}"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", *options],
        cwd=elsewhere,
        env={**os.environ, **OWN_RAY, "SHOWATTENDTELL_CACHE": str(elsewhere)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert any("Ray runtime started" in line for line in process.stdout or ())
    return process
