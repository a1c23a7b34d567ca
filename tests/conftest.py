"""Commands as users type them, each in a process of its own."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

PRELOADED = ["showattendtell.training", "showattendtell.evaluation", "showattendtell.checkpoint"]
PRELOADED += ["showattendtell.report.heatmaps", "showattendtell.report.tables", "showattendtell.report.results"]

RUN_MODULE = """
import os, runpy, sys
os.chdir(folder)
os.environ.update(environment)
for number, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
sys.argv = arguments
runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
"""


class Finished(NamedTuple):
    """A command that ended: its exit status, and what it printed."""

    status: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture(scope="session")
def fresh_command() -> Command:
    """`python -m showattendtell.COMMAND SETTING ...` in a new Python."""

    def run(command: str, *settings: str, folder: Path, **environment: str) -> Finished:
        line = [sys.executable, "-m", f"showattendtell.{command}", *settings]
        done = subprocess.run(line, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The same in a fork of a Python that has imported torch and Lightning once, which saves seconds a command."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    printed = tmp_path_factory.mktemp("printed")

    def run(command: str, *settings: str, folder: Path, **environment: str) -> Finished:
        files = {"out": printed / "out", "err": printed / "err"}
        names = {"folder": folder, "environment": environment, "arguments": [f"showattendtell.{command}", *settings]}
        process = context.Process(target=exec, args=(RUN_MODULE, {**names, **files}))
        process.start()
        process.join()
        return Finished(process.exitcode, files["out"].read_text(), files["err"].read_text())

    return run
