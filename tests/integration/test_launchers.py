"""Sweeps by every launcher: at once, in folders of their own, and none the worse for another's end."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import light_command
import pytest
import slurm
import torch
from runs import SIZES, TINY, Run, restore_sigint, wait_until
from slow_cases import slow_after

from showattendtell.features.store import FeatureStore

SHARE = str(max(1, joblib.cpu_count() // 2))
"""The threads of one of two runs."""


def start(
    folder: Path, *arguments: str, program: str = light_command.__file__, **environment: str
) -> subprocess.Popen[str]:
    """The light command in a process group of its own, with all that it keeps in `folder`."""
    own = {"SHOWATTENDTELL_CACHE": str(folder)}
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = [sys.executable, program, "-m", *arguments]
    return subprocess.Popen(
        line,
        cwd=folder,
        env={**inherited, **own, **environment},
        start_new_session=True,
        preexec_fn=restore_sigint,
        **pipes,
    )


def sweep(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start(folder, *arguments, **environment)
    try:
        out, err = process.communicate(timeout=900)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_folders(folder: Path) -> list[Path]:
    """Those of the only sweep, in the order of its runs."""
    [own] = (folder / "runs/shapes-sweep").iterdir()
    return sorted((run for run in own.iterdir() if run.name.isdigit()), key=lambda run: int(run.name))


def said(run: Path) -> str:
    return (run / "train.log").read_text()


def results(printed: str) -> dict[str, str]:
    """What is printed of each run, by the values that it had of its own."""
    return dict(re.findall(r"\S+/\d (seed=\d):?\s+(?:error: )?(.+)$", printed, re.MULTILINE))


ENDS = {
    0: "bleu4 0.500",
    1: "bleu4 1.500",
    light_command.FAULTY: "a seed of 2 is a fault; take another",
    light_command.BROKEN: "Traceback (most recent call last):",
}
"""What is printed of each seed's run."""


def assert_runs_continue(
    folder: Path, launcher: str, threads: str, *others: int, settings: str = "", **environment: str
) -> None:
    """Two runs end only at the same time, next to a faulty one and others."""
    seeds = [light_command.CONCURRENT[0], light_command.FAULTY, *others, light_command.CONCURRENT[1]]
    line = [f"hydra/launcher={launcher}", *settings.split(), f"seed={','.join(map(str, seeds))}"]
    done = sweep(folder, *line, **environment)
    assert done.returncode == 2
    assert f"\nerror: {ENDS[light_command.FAULTY]}\n" in done.stderr  # a launcher may print lines after it
    if launcher != "submitit_local":  # which stores what jobs print
        assert results(done.stdout + done.stderr) == {f"seed={seed}": ENDS[seed] for seed in seeds}
    runs = dict(zip(seeds, run_folders(folder), strict=True))
    for seed, run in runs.items():
        assert f"seed {seed} in {run.relative_to(folder)} with {threads} threads\n" in said(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "threads", "others"), [("joblib", SHARE, [light_command.BROKEN]), ("submitit_local", "None", [])]
)
def test_runs_continue_at_once_and_next_to_failing_ones(tmp_path: Path, launcher: str, threads: str, others: list[int]):
    assert_runs_continue(tmp_path, launcher, threads, *others)


def test_runs_in_turn_continue_after_one_that_failed(run_light: Run, tmp_path: Path):
    command = f"runpy.run_path({light_command.__file__!r}, run_name='__main__')"
    done = run_light(command, "train", "-m", "seed=8,2,9", folder=tmp_path, SHOWATTENDTELL_CACHE=str(tmp_path))
    assert done.status == 2
    ends = {"seed=8": "bleu4 8.500", "seed=9": "bleu4 9.500", "seed=2": ENDS[light_command.FAULTY]}
    assert results(done.out + done.err) == ends


@pytest.mark.parametrize(("monitor", "order"), slow_after(1, [("loss", ["8", "9", "12"]), ("bleu4", ["12", "9", "8"])]))
@pytest.mark.parametrize("launcher", ["basic", pytest.param("joblib", marks=pytest.mark.slow)])
def test_a_sweep_prints_a_line_for_each_run_and_a_table_of_those_that_differ(
    tmp_path: Path, monitor: str, order: list[str], launcher: str
):
    done = sweep(tmp_path, "seed=8,9,12", f"monitor={monitor}", "decoder.dropout=0.1", f"hydra/launcher={launcher}")
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("each run prints into train.log in its folder in runs/shapes-sweep/")
    assert all(line.startswith("runs/shapes-sweep/") and f" {monitor} " in line for line in lines[:3])
    assert re.findall(r"│ \d +│ seed=(\d+) +│ ([\d.]+) +│", "\n".join(lines[3:])) == [
        (seed, f"{seed}.500") for seed in order
    ]
    for run, seed in zip(run_folders(tmp_path), (8, 9, 12), strict=True):
        assert said(run).startswith(f"seed {seed} in ")


@pytest.mark.parametrize(("number", "status"), slow_after(1, [(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_a_sweep_that_is_ended_ends_its_runs(tmp_path: Path, number: signal.Signals, status: int):
    process = start(tmp_path, "hydra/launcher=joblib", f"seed={light_command.WAITING}")
    waiting = tmp_path / "waiting"
    wait_until(waiting.exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=900)
    assert process.returncode == status
    assert "Traceback" not in out + err
    wait_until(lambda: not Path("/proc", waiting.read_text()).exists())


@pytest.mark.slow
def test_slurm_is_given_what_the_settings_say_and_a_job_with_notice_is_sent_again(tmp_path: Path):
    commands = slurm.install(tmp_path / "slurm")
    settings = ["partition=gpu", "timeout_min=90", "gpus_per_node=2", "cpus_per_task=3", "array_parallelism=5"]
    line = [f"hydra.launcher.{setting}" for setting in settings]
    seeds = f"seed={light_command.NOTIFIED},8,{light_command.FAULTY}"
    path = f"{commands}:{os.environ['PATH']}"
    done = sweep(tmp_path, "hydra/launcher=submitit_slurm", *line, seeds, PATH=path)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: {ENDS[light_command.FAULTY]}\n")
    runs = run_folders(tmp_path)
    assert all("with 3 threads" in said(run) for run in runs)
    assert (commands / "requeued").read_text() == f"{slurm.JOB}_0\n"
    options = slurm.options(commands)
    expected = {"array": "0-2%3", "cpus-per-task": "3", "gpus-per-node": "2", "job-name": "train", "mem": "16GB"}
    expected |= {"nodes": "1", "ntasks-per-node": "1", "partition": "gpu", "signal": "USR1@90", "time": "90"}
    assert {name: options[name] for name in expected} == expected
    assert options["output"].startswith(str(runs[0].parent / ".submitit"))


def train(folder: Path, *arguments: str, **environment: str) -> None:
    """Small trainings, whose stored grids and drawings are kept in `folder`."""
    own = {"SHOWATTENDTELL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "showattendtell.train", *TINY, *arguments]
    done = subprocess.run(line, cwd=folder, env={**os.environ, **own, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "best.ckpt", weights_only=True)["state_dict"]


@pytest.mark.slow
def test_a_training_of_slurm_continues_when_its_job_is_sent_again(tmp_path: Path):
    commands = slurm.install(tmp_path / "slurm")
    long = ["trainer.max_epochs=40", "callbacks.early_stopping.patience=99", "checkpoint_interval_minutes=0"]
    run, path = tmp_path / "sweep/0", f"{commands}:{os.environ['PATH']}"
    with ThreadPoolExecutor(1) as pool:
        line = ["-m", "hydra/launcher=submitit_slurm", "hydra.sweep.dir=sweep", *long, "seed=1,2"]
        training = pool.submit(train, tmp_path, *line, PATH=path)
        wait_until(lambda: (run / "last.ckpt").exists() or training.done())
        os.kill(int((commands / "process-0").read_text()), signal.SIGUSR1)
        training.result()
    assert (commands / "requeued").read_text() == f"{slurm.JOB}_0\n"
    assert "sweep/0 resumes after step " in said(run)
    assert [row.split(",")[0] for row in (run / "metrics.csv").read_text().splitlines()].count("39") >= 1
    assert "the best checkpoint is sweep/0/best.ckpt" in said(run)


def assert_trainings_share_one_store(folder: Path, launcher: str, **environment: str) -> None:
    """And leave what each would alone, in a process of its own."""
    train(folder, "seed=1", "hydra.run.dir=alone", SHOWATTENDTELL_CACHE=str(folder / "own cache"))
    train(folder, "-m", f"hydra/launcher={launcher}", "seed=1,2", **environment)
    alone, first, second = map(weights, [folder / "alone", *run_folders(folder)])
    assert first.keys() == second.keys() == alone.keys()
    for name, weight in alone.items():
        assert torch.equal(first[name], weight), name
    assert any(not torch.equal(second[name], weight) for name, weight in alone.items())
    for run in run_folders(folder):
        assert {"best.ckpt", "last.ckpt", "metrics.csv", "learning_curve.png"} <= {file.name for file in run.iterdir()}
        assert f"{run.relative_to(folder)}/best.ckpt" in said(run)
    [drawings] = (folder / "cache/shapes").iterdir()
    assert len(list(drawings.iterdir())) == sum(SIZES.values())
    [manifest] = (folder / "cache").rglob("store.json")
    assert len(FeatureStore(manifest.parent)) == sum(SIZES.values())
    assert {file.suffix for file in manifest.parent.iterdir()} == {".npy", ".json"}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_trainings_at_once_share_one_store(tmp_path: Path, launcher: str):
    assert_trainings_share_one_store(tmp_path, launcher)
