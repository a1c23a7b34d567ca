"""Training in stages, each of which begins with the best checkpoint of the previous one."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from showattendtell.config.command_line import check_command
from showattendtell.config.entry_point import quoted, read_choices, run_folder, search_root
from showattendtell.config.subprocesses import Subcommands
from showattendtell.errors import UserError
from showattendtell.runtime.files import BEST, atomic_write
from showattendtell.settings import may_differ
from showattendtell.training.resume import STAGES, checkpoints_in, command_of, discard, is_trained, peek


def run_stages(settings: Mapping[str, Any]) -> float:
    """Train all stages and return the best metric of the last one.

    Each runs as a process `python -m showattendtell.train` in a folder `NUMBER-NAME` of the run; finished ones are
    skipped, others resume.

    Raises:
        UserError: the command of a stage has a mistake; before the first stage begins.
    """
    if "RANK" in os.environ:
        raise UserError("stages start their processes themselves; leave torchrun out and give trainer.devices")
    given = read_choices().arguments
    folder = _find_folder(settings, given)
    stages = list(plan_stages(settings["stages"], folder, given))
    for name, _, arguments in stages:
        try:
            check_command("train", arguments)
        except UserError as fault:
            raise UserError(f"stage {name}: {fault}") from None
    with atomic_write(folder / STAGES) as file:
        file.write(json.dumps({"arguments": given}, indent=2).encode())
    for number, (name, place, arguments) in enumerate(stages, start=1):
        done = is_trained(place)
        print(f"stage {number} of {len(stages)}, {name}: {place}{' is finished' * done}", flush=True)
        if not done:
            _train_stage(name, place, arguments)
    best = peek(stages[-1][1]).best
    return 0.0 if best is None else best


def plan_stages(
    stages: Mapping[str, Sequence[str]], folder: Path, given: Sequence[str]
) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield each stage's name, its folder within that of the run, and the arguments of its command: those given for all
    stages, its own ones, and its initial checkpoint."""
    begins: list[str] = []
    for number, (name, own) in enumerate(stages.items(), start=1):
        if "/" in str(name):
            raise UserError(f"stages.{name}: the name of a stage is the name of its folder, and has no slash")
        place = folder / f"{number}-{name}"
        fixed = ["stages=null", f"hydra.run.dir={quoted(str(place))}"]
        yield str(name), place, [*given, *own, *begins, *fixed]
        begins = [f"init_from={quoted(str(place / BEST))}"]


def _find_folder(settings: Mapping[str, Any], given: Sequence[str]) -> Path:
    """Return the folder of the run in stages that is resumed, or of a new one."""
    folder, root = run_folder(), search_root()
    if not settings["resume"] and "SLURM_RESTART_COUNT" not in os.environ:
        if (folder / STAGES).exists():
            raise UserError(f"{folder} has stages already; resume them with resume=true, or set another folder")
        return folder
    if root is None or isinstance(settings["resume"], str):
        if (folder / STAGES).is_file() and not _has_command(folder, given):
            raise UserError(f"{folder} has the stages of another command; give its own command, or set another folder")
        return folder
    files = sorted(root.rglob(STAGES), key=lambda file: file.stat().st_mtime, reverse=True)
    same = []
    for run in (file.parent for file in files):
        with suppress(UserError):  # damaged
            if _has_command(run, given):
                same.append(run)
    stages = settings["stages"]
    unfinished = [run for run in same if not all(is_trained(it) for _, it, _ in plan_stages(stages, run, given))]
    found = next(iter([*unfinished, *same]), folder)
    if found != folder:
        discard(folder)
    return found


def _has_command(folder: Path, given: Sequence[str]) -> bool:
    """Return whether the stages in a folder have the same arguments, apart from those that do not affect the result."""
    ours, theirs = (
        sorted(line for line in arguments if not may_differ(line.partition("=")[0].lstrip("+")))
        for arguments in (given, command_of(folder)[1])
    )
    return ours == theirs


def _train_stage(name: str, folder: Path, arguments: Sequence[str]) -> None:
    """Train a stage. Exits with the status of a training that a signal stopped."""
    resuming = ["resume=true"] if checkpoints_in(folder) else []
    with Subcommands() as commands:
        status = commands.status_of("train", *arguments, *resuming)
    if status > 128:  # as in shells: a signal ended the program
        sys.exit(status)
    if status:
        raise UserError(
            f"stage {name} failed with the error above; when that is fixed, resume=true continues from there"
        )
    if not (folder / BEST).is_file():
        raise UserError(f"stage {name} has left no {BEST} for the next; it must validate at least once")
