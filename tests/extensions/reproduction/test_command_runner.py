"""Commands that CommandRunner runs one after the other: their errors, and the signals that it forwards."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.work import CommandRunner
from showattendtell.runtime.files import file_lock

PATIENT = """#!/bin/sh
echo begun >> log
trap 'echo saved >> log; exit 143' TERM
while :; do sleep 0.05; done
"""
"""A command that saves what it has when it is asked to stop."""

FOLLOWED = """
import sys
from showattendtell.extensions.reproduction.work import CommandRunner
sys.executable = "./patient"
with CommandRunner() as commands:
    commands.run("train", "seed=1")
    commands.run("train", "seed=2")
"""


def test_a_command_that_fails_is_named_with_its_status(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    with (
        CommandRunner() as commands,
        pytest.raises(UserError, match=r"report ended with status 2; .* \$ python -m showattend"),
    ):
        commands.run("report", str(tmp_path / "no where"))
    printed = capfd.readouterr()
    assert f"$ python -m showattendtell.report '{tmp_path}/no where'" in printed.out
    assert "does not exist" in printed.err


@pytest.mark.parametrize("number", ["TERM", "KILL"])
def test_a_signal_ends_the_present_command_in_its_own_way_and_begins_no_other(number: str, tmp_path: Path):
    patient = tmp_path / "patient"
    patient.write_text(PATIENT)
    patient.chmod(0o755)
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", FOLLOWED], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(log, "begun\n")
    subprocess.run(["kill", f"-{number}", str(process.pid)], check=True)
    _, output = process.communicate()
    wait_for(log, "begun\nsaved\n")
    if number == "TERM":
        assert process.returncode == 143
        assert output == "\nstopped; the same command resumes from here\n"


WAITING = """
import sys
from pathlib import Path
from showattendtell.runtime.files import file_lock
from showattendtell.extensions.reproduction.work import CommandRunner
with CommandRunner():
    Path("log").write_text("begun\\n")
    with file_lock(Path("lock")):
        Path("log").write_text("held\\n")
"""


def test_a_signal_ends_a_worker_that_waits_for_another(tmp_path: Path):
    with file_lock(tmp_path / "lock"):
        process = subprocess.Popen([sys.executable, "-c", WAITING], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        wait_for(tmp_path / "log", "begun\n")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == "\nstopped; the same command resumes from here\n"
    assert (tmp_path / "log").read_text() == "begun\n"


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_text() != text:
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "nothing began"
        time.sleep(0.02)
