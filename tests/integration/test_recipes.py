"""The recipes of tables, as plans and as runs of GNU make."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from repository import ROOT
from runs import STEPWISE, last_written, wait_until
from slow_cases import slow_after

from showattendtell.config.command_line import parse
from showattendtell.config.compose import compose

TABLES = sorted(file.stem for file in ROOT.glob("recipes/*.mk") if file.stem != "rules")


def planned(table: str, *variables: str) -> list[list[str]]:
    """The commands that make would run, in their order."""
    line = ["make", "-n", "-f", f"recipes/{table}.mk", *variables]
    plan = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [shlex.split(text)[1:] for text in plan.splitlines() if text.startswith("showattendtell ")]


def settings(arguments: list[str]) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in arguments if "=" in argument)


@pytest.mark.parametrize("table", slow_after(1, TABLES[::-1]))
def test_every_command_of_a_plan_has_valid_settings_and_uses_what_an_earlier_one_writes(table: str, tmp_path: Path):
    written: set[str] = set()
    composed: set[tuple[str, ...]] = set()
    for command, *arguments in planned(table, f"ROOT={tmp_path}", "SEEDS=7", "DECODINGS=beam4 consensus"):
        flags, overrides = parse(command, arguments, "runs" if command == "report" else "")
        kind = (command, *(re.sub(r"runs/[\w/-]+/", "runs/", override) for override in overrides))
        if kind not in composed:
            compose(command, [*flags, *overrides])
            composed.add(kind)
        given = settings(arguments)
        checkpoints = given.get("checkpoint", given.get("init_from", "")).strip("[]").split(",")
        used = {*checkpoints, given.get("distillation.captions", "")} - {""}
        assert used <= written
        if command == "train":
            assert given["resume"] == "true"
            written.add(f"{given['hydra.run.dir']}/best.ckpt")
        elif command != "report":
            written.add(given["output"].removesuffix(".part"))


def test_the_plan_has_every_row_of_the_published_table_with_every_seed_and_decoding():
    lines = (ROOT / "docs/results/flickr8k-test.csv").read_text(encoding="utf-8").splitlines()[1:]
    rows = {line.split(",")[0] for line in lines if not line.startswith("paper: ")}
    trained, scored = set(), set()
    for command, *arguments in planned("flickr8k", "ROOT=DIR"):
        given = settings(arguments)
        if command in ("train", "average"):
            path = given.get("hydra.run.dir") or os.path.dirname(given["output"])
            assert given.get("seed", path[-1]) == path[-1]
            trained.add(path.removeprefix("runs/paper-flickr8k/"))
        if command == "evaluate" and "split" not in given:
            scored.add(given["output"].removeprefix("runs/paper-flickr8k/").removesuffix(".json.part"))
    single = {row for row in rows if not row.endswith("ensemble")}
    assert trained == {f"{row}/{seed}" for row in single for seed in (1, 2, 3)}
    folders = {*trained, *rows - single}
    names = ("beam1", "beam3", "beam5", "consensus")
    assert scored == {f"{folder}/results-test-{name}" for folder in folders for name in names}


def make(folder: Path) -> subprocess.Popen[str]:
    """Start a row of the table of shapes with two seeds, small, two commands at a time, in a group of processes."""
    variables = {
        "SHOWATTENDTELL": f"{sys.executable} -m showattendtell",
        "ROWS": "soft",
        "SEEDS": "1 2",
        "DECODINGS": "beam1",
        "RUNS": "runs/recipe",
        "SETTINGS": shlex.join(STEPWISE),
    }
    line = ["make", "-j2", "-f", ROOT / "recipes/shapes.mk", *(f"{name}={text}" for name, text in variables.items())]
    environment = {**os.environ, "SHOWATTENDTELL_CACHE": str(folder / "cache")}
    with (folder / "make.log").open("w") as log:
        return subprocess.Popen(line, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.slow
def test_a_row_that_was_killed_in_its_training_is_finished_by_the_same_command(uninterrupted: Path, folder: Path):
    recipe, log = folder / "runs/recipe", folder / "make.log"
    process, seen = make(folder), set[int]()
    wait_until(lambda: seen.add(last_written(recipe / "soft/1")) or len(seen) > 3 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (recipe / "soft/1/trained").exists()
    assert make(folder).wait() == 0, log.read_text()
    assert (recipe / "soft/1/metrics.csv").read_text() == (uninterrupted / "metrics.csv").read_text()
    whole, rest = (
        torch.load(run / "best.ckpt", weights_only=True)["state_dict"] for run in (uninterrupted, recipe / "soft/1")
    )
    assert [name for name in whole if not torch.equal(whole[name], rest[name])] == []
    assert "| soft | " in (recipe / "shapes.md").read_text()
    assert make(folder).wait() == 0
    assert "is up to date" in log.read_text()
