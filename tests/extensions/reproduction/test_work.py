"""Who carries out which runs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from small_table import TABLE, configured, finish, hash_of, written

from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.runs import TableRun, make_runs
from showattendtell.extensions.reproduction.tables import RecipeConfig
from showattendtell.extensions.reproduction.work import CommandRunner, carry_out, score_ensembles


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
    assert carry_out(seconds, tmp_path, commands, configured()) == []
    assert commands.run_commands == ["train soft_cider/2", "train soft_cider/1"]


def test_a_run_that_fails_is_not_tried_again_and_what_begins_with_it_is_not_begun(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)

    def meanwhile(message: str) -> None:
        if message == "train soft/1":
            raise UserError("it fails")
        finish(next(run for run in (*firsts, *seconds) if message.endswith(f"{run.recipe}/{run.seed}")))

    commands = RecordedCommands(tmp_path, meanwhile)
    assert carry_out([*firsts, *seconds], tmp_path, commands, configured()) == ["soft, seed 1: it fails"]
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
    assert carry_out([first, second], tmp_path, commands, config) == []
    write = "evaluate captioned/captions-train.json"
    assert commands.run_commands == [write, "train captioned/1", "train captioned/2"]

    shutil.rmtree(second.folder)
    for run in writers:
        (run.folder / "best.ckpt").write_text("trained again")
        for beam in run.scoring.decodings:
            result = {**written(beam), "checkpoint_sha256": hash_of(run)}
            run.scoring.result_file(beam).write_text(json.dumps(result))
    commands = RecordedCommands(tmp_path, meanwhile)
    assert carry_out([second], tmp_path, commands, config) == []
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
        assert score_ensembles(TABLE, runs, tmp_path, RecordedCommands(tmp_path), configured()) == []
    assert "soft_ensemble is being processed by another worker" in capsys.readouterr().out

    commands = RecordedCommands(tmp_path)
    [fault] = score_ensembles(TABLE, runs, tmp_path, commands, configured())
    assert commands.run_commands == ["evaluate soft_ensemble/1-2/results-test-beam1.json"]
    assert fault.startswith("soft_ensemble: ")  # there is no result, since nothing was run


def test_an_ensemble_waits_for_all_runs_that_are_required(made: Any, tmp_path: Path):
    runs = made("recipes=soft", "seeds=[1,2,3]")
    for run in runs[:2]:
        finish(run)
    commands = RecordedCommands(tmp_path)
    assert score_ensembles(TABLE, runs, tmp_path, commands, configured("seeds=[1,2,3]")) == []
    assert commands.run_commands == []
