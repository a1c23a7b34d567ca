"""Who carries out which runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_table import configured, finish

from showattendtell.errors import UserError
from showattendtell.reproduction.commands import Commands
from showattendtell.reproduction.runs import Run
from showattendtell.reproduction.work import carry_out


class Told(Commands):
    """What is trained, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[str], None]):
        super().__init__()
        self.meanwhile = meanwhile
        self.told: list[str] = []

    def run(self, command: str, *settings: str) -> None:
        for setting in settings:
            if setting.startswith("hydra.run.dir="):
                self.told.append("/".join([command, *Path(setting).parts[-2:]]))
                self.meanwhile(self.told[-1])


def stages(made: Any) -> tuple[list[Run], list[Run]]:
    runs = made("recipes=soft_cider")
    return runs[:2], runs[2:]


def test_a_second_stage_is_run_that_could_not_begin_before_another_one_was_done(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)
    finish(firsts[1])

    def meanwhile(told: str) -> None:
        if told == "train/soft_cider/2":  # another worker has scored the first stage of seed 1
            finish(firsts[0])
        finish(next(run for run in seconds if told.endswith(f"/{run.seed}")))

    commands = Told(meanwhile)
    assert carry_out(seconds, tmp_path, commands, configured()) == []
    assert commands.told == ["train/soft_cider/2", "train/soft_cider/1"]


def test_a_run_that_fails_is_not_tried_again_and_what_begins_with_it_is_not_begun(made: Any, tmp_path: Path):
    firsts, seconds = stages(made)

    def meanwhile(told: str) -> None:
        if told == "train/soft/1":
            raise UserError("it fails")
        finish(next(run for run in (*firsts, *seconds) if told.endswith(f"{run.recipe}/{run.seed}")))

    commands = Told(meanwhile)
    assert carry_out([*firsts, *seconds], tmp_path, commands, configured()) == ["soft, seed 1: it fails"]
    assert commands.told == ["train/soft/1", "train/soft/2", "train/soft_cider/2"]
