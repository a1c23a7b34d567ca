"""Training in stages, one after the other: each begins with the best checkpoint of the one before."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from showattendtell.config.command_line import check_command
from showattendtell.config.compose import beside_a_command
from showattendtell.config.entry import chosen, quoted, run_folder, search_root
from showattendtell.config.subcommands import Subcommands
from showattendtell.errors import UserError
from showattendtell.files import BEST, whole_file
from showattendtell.resuming import STAGES, arguments_of, checkpoints_in, discard, is_trained, peek
from showattendtell.same_training import may_differ

SIGNALLED = 128
"""The exit status of a program that a signal ends is more, as shells tell it."""


class Stage(NamedTuple):
    """A training: its name, its folder, and the arguments of its command."""

    name: str
    folder: Path
    arguments: list[str]

    @property
    def is_finished(self) -> bool:
        return is_trained(self.folder)


def run_stages(config: DictConfig) -> float:
    """The best figure of the last stage. Each is trained by a process of its own, `python -m showattendtell.train`,
    in a folder `NUMBER-NAME` of the run's; one that is finished is passed over, one that had begun goes on.

    Raises `UserError` where anything in a stage's command is wrong, before the first begins.
    """
    if "RANK" in os.environ:
        raise UserError("stages start their processes themselves; leave torchrun out and give trainer.devices")
    given = chosen().arguments
    folder = _find_folder(config, given)
    stages = list(plan_stages(config.stages, folder, given))
    for stage in stages:
        _check(stage)
    with whole_file(folder / STAGES) as file:
        file.write(json.dumps({"arguments": given}, indent=2).encode())
    for number, stage in enumerate(stages, start=1):
        done = stage.is_finished
        print(f"stage {number} of {len(stages)}, {stage.name}: {stage.folder}{' is finished' * done}", flush=True)
        if not done:
            _train(stage)
    best = peek(stages[-1].folder).best
    return 0.0 if best is None else best


def plan_stages(stages: Mapping[str, Sequence[str]], folder: Path, given: Sequence[str]) -> Iterator[Stage]:
    """Each stage's command: what the whole command was given, what the stage says besides, and where it begins.

    Args:
        stages: the arguments of each by its name.
        folder: that of all.
    """
    begins: list[str] = []
    for number, (name, own) in enumerate(stages.items(), start=1):
        place = folder / f"{number}-{name}"
        fixed = ["stages=null", f"hydra.run.dir={quoted(str(place))}"]
        yield Stage(str(name), place, [*given, *own, *begins, *fixed])
        begins = [f"initial_weights={quoted(str(place / BEST))}"]


def _find_folder(config: DictConfig, given: Sequence[str]) -> Path:
    """That of the run which goes on, or of a new one."""
    folder, root = run_folder(), search_root()
    if not config.resume and "SLURM_RESTART_COUNT" not in os.environ:
        if (folder / STAGES).exists():
            raise UserError(f"{folder} has stages already; go on with them by resume=true, or take another folder")
        return folder
    if root is None or isinstance(config.resume, str):
        if (folder / STAGES).is_file() and _telling(arguments_of(folder)) != _telling(given):
            raise UserError(f"{folder} has the stages of another command; give its own, or take another folder")
        return folder
    files = sorted(root.rglob(STAGES), key=lambda file: file.stat().st_mtime, reverse=True)
    same = [file.parent for file in files if _telling(arguments_of(file.parent)) == _telling(given)]
    unfinished = [run for run in same if not all(s.is_finished for s in plan_stages(config.stages, run, given))]
    found = next(iter([*unfinished, *same]), folder)
    if found != folder:
        discard(folder)
    return found


def _telling(arguments: Sequence[str]) -> list[str]:
    """Those that decide what is learned."""
    return [line for line in arguments if not may_differ(line.partition("=")[0].lstrip("+"))]


def _check(stage: Stage) -> None:
    try:
        with beside_a_command():
            check_command("train", stage.arguments)
    except UserError as fault:
        raise UserError(f"stage {stage.name}: {fault}") from None


def _train(stage: Stage) -> None:
    """Raises `SystemExit` with the status of a training that a signal stopped, and `UserError` where it failed or has
    left no best checkpoint."""
    goes_on = ["resume=true"] if checkpoints_in(stage.folder) else []
    with Subcommands() as commands:
        status = commands.status_of("train", *stage.arguments, *goes_on)
    if status > SIGNALLED:
        sys.exit(status)
    if status:
        raise UserError(f"stage {stage.name} failed as told above; when that is mended, resume=true goes on from there")
    if not (stage.folder / BEST).is_file():
        raise UserError(f"stage {stage.name} has left no {BEST} for the next; let it validate after an epoch at least")
