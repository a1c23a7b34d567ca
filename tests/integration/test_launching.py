"""Runs of several processes, however they are started, and whatever becomes of one."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from grid_stores import content
from runs import TINY, assert_error, restore_sigint
from slow_cases import slow_after

from showattendtell.runtime.files import METRICS
from showattendtell.visualization.figures import read_metrics

TRAIN = ["-m", "showattendtell.train"]
TORCHRUN = ["-m", "torch.distributed.run"]
STEPS = ["trainer.max_epochs=3", "trainer.limit_train_batches=4", "trainer.limit_val_batches=2"]
SETTINGS = [*TINY, *STEPS, "data.batch_size=8", "decoder.dropout=0.5", "checkpoint_interval_minutes=0"]
TWO = ["trainer=ddp", "trainer.devices=2"]
TIME_LIMIT = 900
"""Seconds within which everything ends."""


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    own = {"SHOWATTENDTELL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    given = {"cwd": folder, "env": {**os.environ, **own, **environment}, "preexec_fn": restore_sigint}
    return subprocess.Popen([sys.executable, *arguments], **given, **pipes)


def finish(process: subprocess.Popen[str]) -> SimpleNamespace:
    try:
        out, err = process.communicate(timeout=TIME_LIMIT)
    finally:
        process.kill()
    return SimpleNamespace(status=process.returncode, out=out, err=err)


def run(folder: Path, *arguments: str, **environment: str) -> SimpleNamespace:
    return finish(start(folder, *arguments, **environment))


def assert_all_done(*processes: SimpleNamespace) -> None:
    for process in processes:
        assert process.status == 0, process.err


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(one: Path, other: Path) -> None:
    assert {name: value for name, value in weights(one).items() if not torch.equal(value, weights(other)[name])} == {}


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes that train, of one that has started them: Python's own tracker of resources is none."""
    own = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    return [pid for pid in own if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def assert_gone(pids: list[int]) -> None:
    """Within the time limit."""
    latest = time.monotonic() + TIME_LIMIT
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < latest, alive
        time.sleep(0.1)


def wait_for_step(process: subprocess.Popen[str], run: Path) -> None:
    """Until a step has been saved."""
    while process.poll() is None and not (run / "last.ckpt").exists():
        time.sleep(0.01)


@pytest.fixture(scope="session")
def two(folder: Path, prepared: Any) -> Path:
    """A run of two processes."""
    done = run(folder, *TRAIN, *SETTINGS, *TWO, "hydra.run.dir=runs/two")
    assert_all_done(done)
    assert done.out.count("epoch   3: ") == 1
    return folder / "runs/two"


def launchers(folder: Path, kind: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Two machines on this one, each with a launcher and a process of its own."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    for number in ("0", "1"):
        if kind == "torchrun":
            place = ["--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1"]
            address = ["--master-addr=127.0.0.1", f"--master-port={port}"]
            yield start(folder, *TORCHRUN, *place, *address, *command)
        else:
            job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "captions", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
            job["SLURM_NTASKS_PER_NODE"] = job["SLURM_STEP_ID"] = "1"
            place = {"SLURM_PROCID": number, "SLURM_NODEID": number, "SLURM_LOCALID": "0"}
            yield start(folder, *command, **job, **place, SLURM_NODELIST="localhost", MASTER_PORT=str(port))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_processes_on_two_machines_end_with_the_weights_of_two_on_one(folder: Path, two: Path, kind: str):
    command = [*TRAIN, *SETTINGS, "trainer=ddp", f"hydra.run.dir=runs/{kind}"]
    first, second = (finish(process) for process in list(launchers(folder, kind, *command)))
    assert_all_done(first, second)
    assert_same_weights(two, folder / "runs" / kind)
    assert {file.name for file in two.iterdir()} == {file.name for file in (folder / "runs" / kind).iterdir()}
    assert "epoch   3: " in first.out
    assert "epoch" not in second.out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_prepare_on_two_machines_writes_the_store_of_one_process(
    folder: Path, prepared: Any, tmp_path: Path, kind: str
):
    shutil.copytree(folder / "cache", tmp_path / "cache", ignore=shutil.ignore_patterns("features"))
    command = ["-m", "showattendtell.prepare", *TINY]
    first, second = (finish(process) for process in list(launchers(tmp_path, kind, *command)))
    assert_all_done(first, second)
    [store] = (tmp_path / "cache/features").glob("*/*")
    assert content(store) == content(folder / "cache" / store.relative_to(tmp_path / "cache"))
    assert [done.out.count("vocabulary: ") for done in (first, second)] == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_that_loses_a_process_ends_with_a_sentence_and_continues(folder: Path, two: Path, victim: int):
    command = [*TRAIN, *SETTINGS, *TWO, f"hydra.run.dir=runs/lost{victim}", "resume=true"]
    own = folder / f"runs/lost{victim}"
    process = start(folder, *command)
    wait_for_step(process, own)
    os.kill(children(process)[victim], signal.SIGKILL)
    done = finish(process)
    assert_error(done, f"process {victim + 1} of 2 was ended by SIGKILL", "resume=true continues")
    done = run(folder, *command)
    assert_all_done(done)
    assert "resumes after step" in done.out
    assert_same_weights(two, own)
    figures, others = (read_metrics(run / METRICS) for run in (two, own))
    assert figures.keys() == others.keys()
    for name, curve in figures.items():
        assert others[name] == curve, name


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_notice_to_the_process_that_has_started_them_reaches_all(
    folder: Path, two: Path, number: signal.Signals, status: int
):
    own = folder / f"runs/{number.name}"
    process = start(folder, *TRAIN, *SETTINGS, *TWO, f"hydra.run.dir={own}")
    wait_for_step(process, own)
    workers = children(process)
    os.kill(process.pid, number)
    done = finish(process)
    assert done.status == status
    assert done.err.count("stopped after step") == 1
    assert_gone(workers)
    assert f"resume=runs/{number.name} trainer.devices=2" in done.err
    assert_all_done(run(folder, *TRAIN, f"resume={own}", "trainer.devices=2"))
    assert_same_weights(two, own)
    assert read_metrics(own / METRICS) == read_metrics(two / METRICS)


@pytest.mark.slow
def test_processes_end_with_the_one_that_has_started_them(folder: Path, prepared: Any):
    own = folder / "runs/orphans"
    process = start(folder, *TRAIN, *SETTINGS, *TWO, f"hydra.run.dir={own}", "trainer.max_epochs=500")
    wait_for_step(process, own)
    workers = children(process)
    process.kill()
    process.communicate(timeout=TIME_LIMIT)
    assert_gone(workers)


@pytest.mark.slow
def test_under_torchrun_the_others_say_that_one_is_lost(folder: Path, prepared: Any):
    own = folder / "runs/peers"
    settings = [*SETTINGS, "trainer=ddp", f"hydra.run.dir={own}", "trainer.max_epochs=500"]
    process = start(folder, *TORCHRUN, "--standalone", "--nproc-per-node=2", *TRAIN, *settings)
    wait_for_step(process, own)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[1]), signal.SIGKILL)
    done = finish(process)
    assert done.status == 1
    assert "error: another process of this run has ended or does not answer; run the command again" in done.err
    assert torch.load(own / "last.ckpt", weights_only=True)["global_step"] > 0


@pytest.mark.slow
@pytest.mark.slow
def test_two_processes_follow_the_curve_of_one_with_batches_of_twice_the_size(folder: Path, prepared: Any):
    """50 steps, each its own epoch, so that the log has the loss of each."""
    short = ["trainer.max_epochs=50", "trainer.limit_train_batches=1", "trainer.check_val_every_n_epoch=50"]
    settings = [*TINY, *short, "decoder.dropout=0", "optimizer.lr=0.01"]
    one = start(folder, *TRAIN, *settings, "data.batch_size=64", "hydra.run.dir=runs/64")
    both = start(folder, *TRAIN, *settings, "data.batch_size=32", *TWO, "hydra.run.dir=runs/32")
    assert_all_done(finish(one), finish(both))
    curve, other = (read_metrics(folder / "runs" / size / METRICS)["train/loss"] for size in ("64", "32"))
    assert len(curve) == 50
    assert max(curve.values()) / min(curve.values()) > 1.2
    assert other == pytest.approx(curve, rel=1e-5)


@pytest.mark.parametrize(
    ("setting", "output"),
    [("encoder.network=vgg99", "vgg99 is not a network of timm"), ("optimizer.lr=1e30", "the loss of step")],
)
def test_a_fault_is_reported_once(folder: Path, prepared: Any, setting: str, output: str):
    assert_error(run(folder, *TRAIN, *SETTINGS, *TWO, setting), output)


@pytest.mark.slow
def test_a_sweep_has_runs_of_several_processes(folder: Path, two: Path):
    done = run(folder, *TRAIN, "-m", *SETTINGS, *TWO, "seed=1,2", "hydra.sweep.dir=runs/pairs")
    assert_all_done(done)
    assert len(re.findall(r"^runs/pairs/\d .*seed=\d  bleu4 \d", done.out, re.MULTILINE)) == 2
    assert_same_weights(two, folder / "runs/pairs/0")


ANYWHERE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "captions", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
ANYWHERE["SLURM_STEP_ID"] = "0"
GROUP = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
REFUSED = [
    (["trainer.num_nodes=2"], {}, "trainer.num_nodes=2 needs torchrun on each machine, or SLURM"),
    (["trainer.devices=0"], {}, "error: trainer: "),
    ([], ANYWHERE, "SLURM was given --ntasks=2; give it --nodes and --ntasks-per-node"),
    (["trainer.devices=3"], GROUP, "trainer.devices=3, and 2 processes were started on this machine; leave it out"),
    (["-m", "seed=1,2"], GROUP, "a sweep starts its runs itself; leave torchrun out"),
]


@pytest.mark.parametrize(("settings", "environment", "message"), slow_after(1, REFUSED))
def test_processes_that_cannot_be_started_are_reported(
    run: Any, settings: list[str], environment: dict[str, str], message: str
):
    done = run("train", *TINY, *settings, **environment)
    assert (done.status, "Traceback" in done.err) == (2, False)
    assert message in done.err
