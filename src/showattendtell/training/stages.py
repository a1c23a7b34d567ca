"""Training in stages, each of which begins with the best checkpoint of the previous one or averages several."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from showattendtell.config.command_line import quoted
from showattendtell.config.compose import compose
from showattendtell.config.entry_point import config_dirs, read_choices, run_folder, search_root, write_settings
from showattendtell.errors import UserError, did_you_mean
from showattendtell.runtime.files import BEST, LAST, write_json
from showattendtell.runtime.launched import Subcommands, is_launched
from showattendtell.settings import may_differ
from showattendtell.training.resume import (
    STAGES,
    check_unused,
    command_of,
    discard,
    folders_with,
    is_resumed,
    peek,
)


class Stage(NamedTuple):
    """A stage: its name, its folder, and its command, `train` or `average`, with the arguments."""

    name: str
    folder: Path
    command: str
    arguments: list[str]

    @property
    def is_finished(self) -> bool:
        if self.command == "train":
            return (self.folder / LAST).is_file() and peek(self.folder).finished
        return (self.folder / BEST).is_file()


def run_stages(settings: DictConfig) -> float:
    """Run all stages and return the best metric of the last one that trains.

    Each runs as a process, such as `showattendtell train`, in a folder `NUMBER-NAME` of the run. Finished
    stages are skipped, others resume.

    Raises:
        UserError: the command of a stage has a mistake; before the first stage begins.
    """
    if is_launched():
        raise UserError("stages start their processes themselves; leave torchrun or srun out and give trainer.devices")
    given = read_choices().arguments
    folder = _find_folder(settings, given)
    stages = list(plan_stages(settings["stages"], folder, [*config_dirs(), *given]))
    for stage in stages:
        try:
            compose(stage.command, stage.arguments)
        except UserError as error:
            raise UserError(f"stage {stage.name}: {error}") from None
    if not (folder / STAGES).exists():
        write_settings(settings, folder)
    write_json({"arguments": given}, folder / STAGES)
    for i, stage in enumerate(stages, start=1):
        is_finished = stage.is_finished
        print(f"stage {i} of {len(stages)}, {stage.name}: {stage.folder}{' is finished' * is_finished}", flush=True)
        if not is_finished:
            run_stage(stage)
    trained = [stage.folder for stage in stages if stage.command == "train"]
    best = peek(trained[-1]).best
    return math.nan if best is None else best


def plan_stages(
    stages: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]], folder: Path, given: Sequence[str]
) -> Iterator[Stage]:
    """Yield each stage with its folder within that of the run.

    The arguments of a training are those given for all stages, its own ones, and its initial checkpoint. A stage
    `{average: [NAME, ...]}` averages the best checkpoints of stages before it.

    Raises:
        UserError: a name has a slash, or `average` names no stage before it.
    """
    checkpoints: dict[str, str] = {}  # best ones of the stages so far
    for i, (key, arguments) in enumerate(stages.items(), start=1):
        name = str(key)
        if "/" in name:
            raise UserError(f"stages.{name}: the name of a stage is the name of its folder, and has no slash")
        stage_folder = folder / f"{i}-{name}"
        if isinstance(arguments, Mapping):
            for other in arguments["average"]:
                if other not in checkpoints:
                    hint = did_you_mean(other, checkpoints)
                    raise UserError(f"stages.{name}.average: there is no stage {other} before it{hint}")
            averaged = ",".join(checkpoints[other] for other in arguments["average"])
            output = quoted(str(stage_folder / BEST))
            yield Stage(name, stage_folder, "average", [f"checkpoint=[{averaged}]", f"output={output}"])
        else:
            init = [f"init_from={best}" for best in list(checkpoints.values())[-1:]]
            fixed = ["stages=null", f"hydra.run.dir={quoted(str(stage_folder))}"]
            yield Stage(name, stage_folder, "train", [*given, *arguments, *init, *fixed])
        checkpoints[name] = quoted(str(stage_folder / BEST))


def _find_folder(settings: Mapping[str, Any], given: Sequence[str]) -> Path:
    """Return the folder of the run in stages that is resumed, or of a new one."""
    folder, root = run_folder(), search_root()
    if not is_resumed(settings):
        check_unused(folder)
        return folder
    if root is None or isinstance(settings["resume"], str):
        if (folder / STAGES).is_file() and not _has_command(folder, given):
            raise UserError(f"{folder} has the stages of another command; give its own command, or set another folder")
        return folder
    found = None  # the newest unfinished run, or else the newest
    for other in folders_with(root, STAGES):
        with suppress(UserError):  # damaged
            if _has_command(other, given):
                found = found or other
                if not all(stage.is_finished for stage in plan_stages(settings["stages"], other, given)):
                    found = other
                    break
    if found:
        discard(folder)
    return found or folder


def _has_command(folder: Path, given: Sequence[str]) -> bool:
    """Return whether the stages in a folder have the same arguments, apart from those that do not affect the result."""

    def relevant(arguments: Sequence[str]) -> list[str]:
        return sorted(line for line in arguments if not may_differ(line.partition("=")[0].lstrip("+")))

    return relevant(given) == relevant(command_of(folder)[1])


def run_stage(stage: Stage) -> None:
    """Run a stage. Exit if a signal stopped it, or arrived while it ended."""
    resuming = ["resume=true"] if stage.command == "train" and stage.folder.exists() else []
    with Subcommands() as commands:
        status = commands.status_of(stage.command, *stage.arguments, *resuming)
    if commands.received_signal and status <= 128:
        status = 128 + commands.received_signal
    if status > 128:  # as in shells: a signal ended the program
        sys.exit(status)
    if status:
        raise UserError(f"stage {stage.name} failed with the error above; resume=true continues from there")
    if not (stage.folder / BEST).is_file():
        raise UserError(f"stage {stage.name} has left no {BEST} for the next; it must validate at least once")
