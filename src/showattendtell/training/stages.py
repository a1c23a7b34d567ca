"""Training in stages: each begins with the best checkpoint of the previous one."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from showattendtell.config.command_line import check_command
from showattendtell.config.entry_point import quoted, read_choices, run_folder, search_root
from showattendtell.config.hydra_internals import outside_of_command
from showattendtell.config.subprocesses import Subcommands
from showattendtell.errors import UserError
from showattendtell.runtime.files import BEST, atomic_write
from showattendtell.settings import may_differ
from showattendtell.training.resume import STAGES, checkpoints_in, command_of, discard, is_trained, peek

SIGNALLED = 128
"""Exit statuses above it mean that a signal ended the program, as in shells."""


class Stage(NamedTuple):
    """A training stage: its name, its folder, and the arguments of its command."""

    name: str
    folder: Path
    arguments: list[str]


def run_stages(settings: Mapping[str, Any]) -> float:
    """Train all stages and return the best metric of the last one. Each runs as a process
    `python -m showattendtell.train` in a folder `NUMBER-NAME` of the run; finished ones are skipped, others resume.

    Raises `UserError` for any mistake in a stage's command, before the first stage begins.
    """
    if "RANK" in os.environ:
        raise UserError("stages start their processes themselves; leave torchrun out and give trainer.devices")
    given = read_choices().arguments
    folder = _find_folder(settings, given)
    stages = list(plan_stages(settings["stages"], folder, given))
    for stage in stages:
        try:
            with outside_of_command():
                check_command("train", stage.arguments)
        except UserError as fault:
            raise UserError(f"stage {stage.name}: {fault}") from None
    with atomic_write(folder / STAGES) as file:
        file.write(json.dumps({"arguments": given}, indent=2).encode())
    for number, stage in enumerate(stages, start=1):
        done = is_trained(stage.folder)
        print(f"stage {number} of {len(stages)}, {stage.name}: {stage.folder}{' is finished' * done}", flush=True)
        if not done:
            _train(stage)
    best = peek(stages[-1].folder).best
    return 0.0 if best is None else best


def plan_stages(stages: Mapping[str, Sequence[str]], folder: Path, given: Sequence[str]) -> Iterator[Stage]:
    """Yield each stage's command: the arguments given for all stages, its own ones, and its initial checkpoint.

    Args:
        stages: arguments of each stage, by its name.
        folder: folder of the whole run.
    """
    begins: list[str] = []
    for number, (name, own) in enumerate(stages.items(), start=1):
        if "/" in str(name):
            raise UserError(f"stages.{name}: the name of a stage is the name of its folder, and has no slash")
        place = folder / f"{number}-{name}"
        fixed = ["stages=null", f"hydra.run.dir={quoted(str(place))}"]
        yield Stage(str(name), place, [*given, *own, *begins, *fixed])
        begins = [f"init_from={quoted(str(place / BEST))}"]


def _find_folder(settings: Mapping[str, Any], given: Sequence[str]) -> Path:
    """Return the folder of the run that is resumed, or of a new one."""
    folder, root = run_folder(), search_root()
    if not settings["resume"] and "SLURM_RESTART_COUNT" not in os.environ:
        if (folder / STAGES).exists():
            raise UserError(f"{folder} has stages already; resume them with resume=true, or take another folder")
        return folder
    if root is None or isinstance(settings["resume"], str):
        if (folder / STAGES).is_file() and _affecting(command_of(folder)[1]) != _affecting(given):
            raise UserError(f"{folder} has the stages of another command; give its own, or take another folder")
        return folder
    files = sorted(root.rglob(STAGES), key=lambda file: file.stat().st_mtime, reverse=True)
    same = [file.parent for file in files if _has_command(file.parent, given)]
    unfinished = [
        run
        for run in same
        if not all(is_trained(stage.folder) for stage in plan_stages(settings["stages"], run, given))
    ]
    found = next(iter([*unfinished, *same]), folder)
    if found != folder:
        discard(folder)
    return found


def _has_command(folder: Path, given: Sequence[str]) -> bool:
    """Return whether the stages in a folder have these arguments; damaged files are ignored."""
    try:
        return _affecting(command_of(folder)[1]) == _affecting(given)
    except UserError:
        return False


def _affecting(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that affect the result, sorted: a command has repeated settings at its end."""
    return sorted(line for line in arguments if not may_differ(line.partition("=")[0].lstrip("+")))


def _train(stage: Stage) -> None:
    """Train a stage. Raises `SystemExit` with the status of a training that a signal stopped, and `UserError` if it
    failed or left no best checkpoint."""
    resuming = ["resume=true"] if checkpoints_in(stage.folder) else []
    with Subcommands() as commands:
        status = commands.status_of("train", *stage.arguments, *resuming)
    if status > SIGNALLED:
        sys.exit(status)
    if status:
        raise UserError(
            f"stage {stage.name} failed with the error above; when that is fixed, resume=true continues from there"
        )
    if not (stage.folder / BEST).is_file():
        raise UserError(f"stage {stage.name} has left no {BEST} for the next; let it validate after an epoch at least")
