"""Who carries out which runs."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_table import TABLE, configured, finish, hash_of, written

from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.runs import TableRun, make_runs
from showattendtell.extensions.reproduction.tables import RecipeConfig
from showattendtell.extensions.reproduction.work import CommandRunner, Reproduction
from showattendtell.runtime.files import file_lock


class RecordedCommands(CommandRunner):
    """Records the commands instead of running them."""

    def __init__(self, folder: Path, meanwhile: Callable[[str], None] = print):
        super().__init__()
        self.folder, self.meanwhile = folder, meanwhile
        self.run_commands: list[str] = []

    def run(self, command: str, *settings: str) -> None:
        for setting in settings:
            name, _, place = setting.partition("=")
            if name in ("hydra.run.dir", "output"):
                result = Path(place).relative_to(self.folder)
                self.run_commands.append(f"{command} {result}")
                self.meanwhile(self.run_commands[-1])


def errors_of(
    runs: list[TableRun], commands: RecordedCommands, config: Any = None, ensembles: bool = False
) -> list[str]:
    """Carry out runs, or score their ensembles, and return the errors."""
    work = Reproduction(TABLE, runs, commands.folder, config or configured(), commands)
    if ensembles:
        work.score_ensembles()
    else:
        work.carry_out()
    return work.errors


def stages(made: Any) -> tuple[list[TableRun], list[TableRun]]:
    runs = made("recipes=soft_cider")
    return runs[:2], runs[2:]


def test_a_second_stage_is_run_that_could_not_begin_before_another_one_was_done(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)
    finish(firsts[1])

    def meanwhile(message: str) -> None:
        if message == "train soft_cider/2":  # another worker has scored the first stage of seed 1
            finish(firsts[0])
        finish(next(run for run in seconds if message.endswith(f"/{run.seed}")))

    commands = RecordedCommands(tmp_path, meanwhile)
    assert errors_of(seconds, commands, configured()) == []
    assert commands.run_commands == ["train soft_cider/2", "train soft_cider/1"]


def test_a_run_that_fails_is_not_tried_again_and_what_begins_with_it_is_not_begun(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)

    def meanwhile(message: str) -> None:
        if message == "train soft/1":
            raise UserError("it fails")
        finish(next(run for run in (*firsts, *seconds) if message.endswith(f"{run.recipe}/{run.seed}")))

    commands = RecordedCommands(tmp_path, meanwhile)
    assert errors_of([*firsts, *seconds], commands, configured()) == ["soft, seed 1: it fails"]
    assert commands.run_commands == ["train soft/1", "train soft/2", "train soft_cider/2"]


def test_captions_are_written_once_and_again_for_other_models(tmp_path: Path):
    table = TABLE._replace(
        recipes={**TABLE.recipes, "captioned": RecipeConfig(["dataset=shapes"], captions_of=["soft"])}
    )
    config = configured("recipes=captioned")
    *writers, first, second = make_runs(table, config, tmp_path)
    for run in writers:
        finish(run)
    file = tmp_path / "captioned/captions-train.json"

    def meanwhile(message: str) -> None:
        if message.startswith("evaluate"):
            file.write_text(json.dumps({"checkpoint_sha256": [hash_of(run) for run in writers]}))
        else:
            finish(first if message.endswith("/1") else second)

    commands = RecordedCommands(tmp_path, meanwhile)
    assert errors_of([first, second], commands, config) == []
    write = "evaluate captioned/captions-train.json"
    assert commands.run_commands == [write, "train captioned/1", "train captioned/2"]

    shutil.rmtree(second.folder)
    for run in writers:
        (run.folder / "best.ckpt").write_text("trained again")
        for beam in run.scoring.decodings:
            result = {**written(beam), "checkpoint_sha256": hash_of(run)}
            run.scoring.result_file(beam).write_text(json.dumps(result))
    commands = RecordedCommands(tmp_path, meanwhile)
    assert errors_of([second], commands, config) == []
    assert commands.run_commands == [write, "train captioned/2"]


HOLDS = """
import sys
from pathlib import Path
from showattendtell.runtime.files import lock_file
file = lock_file(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_worker(path: Path) -> Iterator[None]:
    """A process that holds the file."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    with process:
        process.stdout.readline()
        yield
        process.stdin.close()


def test_an_ensemble_that_another_worker_has_is_left_to_it(made: Any, tmp_path: Path, capsys: Any):
    runs = made("recipes=soft")
    for run in runs:
        finish(run)
    with another_worker(tmp_path / "soft_ensemble/1-2.lock"):
        assert errors_of(runs, RecordedCommands(tmp_path), ensembles=True) == []
    assert "soft_ensemble is being processed by another worker" in capsys.readouterr().out

    commands = RecordedCommands(tmp_path)
    [fault] = errors_of(runs, commands, ensembles=True)
    assert commands.run_commands == ["evaluate soft_ensemble/1-2/results-test-beam1.json"]
    assert fault.startswith("soft_ensemble: ")  # there is no result, since nothing was run


def test_an_ensemble_waits_for_all_runs_that_are_required(made: Any, tmp_path: Path):
    runs = made("recipes=soft", "seeds=[1,2,3]")
    for run in runs[:2]:
        finish(run)
    commands = RecordedCommands(tmp_path)
    assert errors_of(runs, commands, configured("seeds=[1,2,3]"), ensembles=True) == []
    assert commands.run_commands == []


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
        _, output = process.communicate(timeout=900)
    assert process.returncode == 130
    assert output == "\nstopped; the same command resumes from here\n"
    assert (tmp_path / "log").read_text() == "begun\n"


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 900
    while not log.exists() or log.read_text() != text:
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "nothing began"
        time.sleep(0.02)
