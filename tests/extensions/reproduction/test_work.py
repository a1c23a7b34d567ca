"""Who carries out which runs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from results import ensemble, write
from runs import wait_until
from small_table import TABLE, configured, finish, scored, train_again

from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.tables import RecipeConfig, TableRun
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


def carry_out(runs: list[TableRun], meanwhile: Callable[[str], None], folder: Path) -> tuple[list[str], list[str]]:
    """Carry out runs; return the errors, and the commands."""
    commands = RecordedCommands(folder, meanwhile)
    work = Reproduction(TABLE, configured("recipes=[]"), folder, commands)
    work.carry_out(runs)
    return work.errors, commands.run_commands


def test_a_folder_with_other_files_is_refused(work_of: Any, tmp_path: Path):
    (tmp_path / "small.md").write_text("notes")
    with pytest.raises(UserError, match="exists, and no file is replaced"):
        work_of("recipes=soft").reproduce()
    assert [file.name for file in tmp_path.iterdir()] == ["small.md"]


def stages(made: Any) -> tuple[list[TableRun], list[TableRun]]:
    runs = made("recipes=soft_cider")
    return runs[:2], runs[2:]


def test_a_second_stage_is_left_to_the_worker_of_its_first_stage(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)
    finish(firsts[1])

    def meanwhile(message: str) -> None:
        if message == "train soft_cider/2":  # the other worker has scored the first stage of seed 1
            finish(firsts[0])
        finish(next(run for run in seconds if message.endswith(f"/{run.seed}")))

    assert carry_out(seconds, meanwhile, tmp_path) == ([], ["train soft_cider/2"])
    assert carry_out([*firsts, *seconds], meanwhile, tmp_path) == ([], ["train soft_cider/1"])


def test_a_run_that_fails_is_not_tried_again_and_what_begins_with_it_is_not_begun(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)

    def meanwhile(message: str) -> None:
        if message == "train soft/1":
            raise UserError("it fails")
        finish(next(run for run in (*firsts, *seconds) if message.endswith(f"{run.recipe}/{run.seed}")))

    done = carry_out([*firsts, *seconds], meanwhile, tmp_path)
    assert done == (["soft, seed 1: it fails"], ["train soft/1", "train soft/2", "train soft_cider/2"])


def test_captions_are_written_once_and_again_for_other_models(made: Any, tmp_path: Path):
    captioned = RecipeConfig(["dataset=shapes"], captions_of=["soft"])
    *writers, first, second = made(
        "recipes=captioned", table=TABLE._replace(recipes={**TABLE.recipes, "captioned": captioned})
    )
    for run in writers:
        finish(run)
    file = tmp_path / "captioned/captions-train.json"

    def meanwhile(message: str) -> None:
        if message.startswith("evaluate"):
            write(ensemble(*(scored(run, 5) for run in writers)), file)
        else:
            finish(first if message.endswith("/1") else second)

    written = "evaluate captioned/captions-train.json"
    done = carry_out([first, second], meanwhile, tmp_path)
    assert done == ([], [written, "train captioned/1", "train captioned/2"])

    shutil.rmtree(second.folder)
    for run in writers:
        train_again(run)
        for beam in run.decodings:
            os.utime(run.result_file(beam), times=(time.time() + 200,) * 2)
    assert carry_out([second], meanwhile, tmp_path) == ([], [written, "train captioned/2"])


def test_an_ensemble_waits_for_all_runs_that_are_required(made: Any, work_of: Any):
    for run in made("recipes=soft", "seeds=[1,2]"):
        finish(run)

    assert work_of("recipes=soft", "seeds=[1,2,3]").ensembles() == []
    ensembles = work_of("recipes=[]", "seeds=[1,2,3]").ensembles()
    assert [run.title for run in ensembles] == ["soft_ensemble"]


def test_the_table_has_what_is_finished_whatever_is_run(made: Any, work_of: Any):
    for run in made("recipes=[soft,hard]", "seeds=[1]"):
        finish(run)

    def finished(*settings: str) -> list[str]:
        return [run.title for run in work_of(*settings).finished_runs()]

    assert finished("recipes=[]") == ["soft, seed 1", "hard, seed 1"]
    assert finished("recipes=[]", "settings=[trainer.max_epochs=3]") == []


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
    wait_until(lambda: log.exists() and log.read_text() == text)
