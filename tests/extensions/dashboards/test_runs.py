"""Runs on dashboards: what these have in the end, and what becomes of the run where they break."""

import csv
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runs import TINY, Run, assert_done, validated
from wandb_files import artifact_of, figures_of, read_wandb

ITS_SERVICE = """
os.environ.pop("WANDB_SERVICE", None)
"""
"""A wandb service of its own, not that of a test before."""

OFFLINE = {"WANDB_MODE": "offline", "first": ITS_SERVICE}
QUICK = [*TINY, "trainer.max_epochs=2", "trainer.limit_train_batches=3", "trainer.log_every_n_steps=1"]
QUICK += ["decoding.max_length=5"]

KILL_ITS_SERVICE = """
import signal, subprocess
from showattendtell.extensions.dashboards.wandb import WandbLogger
log_figures = WandbLogger.log_metrics
def log_and_die(board, metrics, step):
    log_figures(board, metrics, step)
    command = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        if "wandb" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
WandbLogger.log_metrics = log_and_die
"""


def parts_of(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*"))


def logged(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def numbers_of(part: Path) -> list[dict[str, Any]]:
    """The rows of figures, less those of tables."""
    return [row for row in figures_of(read_wandb(part)) if "epoch" in row]


@pytest.mark.slow
def test_the_offline_wandb_run_is_read_back(run: Run, prepared: Any, folder: Path):
    settings = ["logger=[wandb,tensorboard]", "logger.wandb.images=3", "tags=[mine]", "hydra.sweep.dir=runs/boards"]
    home = folder / "runs/boards/0"
    done = assert_done(run("train", "-m", *QUICK, *settings, HOME=str(folder / "home"), **OFFLINE))
    [part] = parts_of(home)
    said = (home / "train.log").read_text()
    assert f"/wandb/{part.name}\n" in said
    records = read_wandb(part)

    rows = logged(home)
    assert [row for row in figures_of(records) if "epoch" in row] == [pytest.approx(row) for row in rows]
    assert {"train/loss", "val/bleu4", "val/loss_per_word", "val/attention_entropy"} <= set().union(*rows)

    steps = [row for row in figures_of(records) if "train/loss_step" in row]
    assert [row["step"] for row in steps] == list(range(6))
    assert all(row["train/images_per_second"] > 0 and row["train/memory_gb"] > 0 for row in steps)

    names = sorted(example.image for example in validated(folder))[:3]
    for files in artifact_of(records, "run_table"):
        shown = json.loads(files["val/captions.table.json"].read_text())["data"]
        assert [row[1] for row in shown] == names

    [best] = artifact_of(records, "model")
    assert {name: file.resolve() for name, file in best.items()} == {"model.ckpt": (home / "best.ckpt").resolve()}
    [description] = records["run"]
    assert (description["display_name"], description["run_group"]) == ("boards/0", "boards")
    assert description["tags"] == ["shapes", "efficientnet_lite0_scene", "soft", "lstm", "mine"]
    assert records["config"][0]["update"]["optimizer"]["eps"] == 1e-8  # a default of torch
    assert not (folder / "home").exists() or not list((folder / "home").rglob("artifacts"))
    assert "anonymous" not in said + done.err

    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = events.EventAccumulator(str(home / "tensorboard")).Reload()
    assert "hp_metric" not in board.Tags()["scalars"]
    shown = [event.value for event in board.Scalars("val/bleu4")]
    assert shown == [pytest.approx(row["val/bleu4"]) for row in rows if "val/bleu4" in row]


@pytest.mark.slow
def test_dashboards_change_nothing_of_what_is_learned(run: Run, prepared: Any, folder: Path):
    settings = [*QUICK, "attention=hard", "decoding=sample"]
    assert_done(run("train", *settings, "hydra.run.dir=runs/plain"))
    shown = ["logger=wandb", "hydra.run.dir=runs/shown"]
    assert_done(run("train", *settings, *shown, **OFFLINE))
    assert logged(folder / "runs/shown") == logged(folder / "runs/plain")


@pytest.mark.slow
def test_training_continues_where_wandb_s_service_ends(run: Run, prepared: Any, folder: Path, tmp_path: Path):
    first = ITS_SERVICE + KILL_ITS_SERVICE
    done = assert_done(run("train", *QUICK, "logger=wandb", f"hydra.run.dir={tmp_path}", **{**OFFLINE, "first": first}))
    assert done.err.count("warning: logger.wandb is switched off for the rest of this run") == 1
    assert "Traceback" not in done.err
    assert (tmp_path / "best.ckpt").is_file()
    assert {row["epoch"] for row in logged(tmp_path)} == {0, 1}


@pytest.mark.slow
def test_a_run_that_is_killed_continues_in_its_wandb_run(
    run: Run, start_forked: Any, prepared: Any, folder: Path, tmp_path: Path
):
    start = partial(start_forked, folder=folder, SHOWATTENDTELL_CACHE=str(folder / "cache"), **OFFLINE)
    settings = [*QUICK, "trainer.max_epochs=4", "logger=wandb", "checkpoint_interval_minutes=60"]
    running = start("train", *settings, f"hydra.run.dir={tmp_path}")
    while running.process.is_alive() and (
        not (tmp_path / "metrics.csv").exists() or max((row["epoch"] for row in logged(tmp_path)), default=-1) < 1
    ):
        time.sleep(0.01)
    os.kill(running.process.pid, signal.SIGKILL)
    running.finish()
    done = assert_done(run("train", f"resume={tmp_path}", **OFFLINE))

    first, second = parts_of(tmp_path)
    assert first.name.split("-")[-1] == second.name.split("-")[-1]
    [command] = [line for line in done.out.splitlines() if "wandb sync" in line]
    assert [Path(part).name for part in command.split()[2:]] == [first.name, second.name]
    rows = [*numbers_of(first), *numbers_of(second)]
    assert {row["epoch"] for row in rows} >= {2, 3}  # what wandb had not written yet when it was killed is lost to it


@pytest.mark.slow
def test_of_several_processes_one_has_the_dashboards(run: Run, prepared: Any, tmp_path: Path):
    processes = ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", f"hydra.run.dir={tmp_path}"]
    assert_done(run("train", *QUICK, *processes, "logger=[wandb,tensorboard]", **OFFLINE))
    [part] = parts_of(tmp_path)
    assert len(list((tmp_path / "tensorboard").glob("events.*"))) == 1
    assert numbers_of(part) == [pytest.approx(row) for row in logged(tmp_path)]
