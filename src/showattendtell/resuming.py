"""Which run goes on, and from which of its checkpoints."""

import filecmp
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from showattendtell.checkpoint import CARD, find_damage, load
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose
from showattendtell.config.differences import find_differences
from showattendtell.config.entry import quoted
from showattendtell.errors import UserError, listed
from showattendtell.files import BEST, LAST, LOCK, PREVIOUS, UNFINISHED, hold
from showattendtell.keeping import BestCheckpoint, LastCheckpoint
from showattendtell.loggers import METRICS
from showattendtell.processes import ending_together, rank
from showattendtell.stopping import NOT_FINITE

STAGES = "stages.json"
"""What the folder of a run in stages has: the arguments of its command."""


class Start(NamedTuple):
    """Where training begins: the run's folder, and the checkpoint that it goes on from with the card in it, if any.

    best is the figure that a run which is finished was selected by, if it has one.
    """

    folder: Path
    checkpoint: Path | None = None
    card: Mapping[str, Any] = {}
    finished: bool = False
    best: float | None = None


def find_start(config: DictConfig, folder: Path, root: Path | None) -> Start:
    """Where the configuration's `resume` says; a job that SLURM runs again goes on without being told to.

    Args:
        folder: that of a new run; it is removed if another run goes on.
        root: the folder in which runs of the same settings are looked for; None where `folder` itself is meant.

    Raises `UserError` for a run that has no whole checkpoint, has other settings, or is being trained.
    """
    if isinstance(config.resume, str):
        return _go_on(Path(config.resume).expanduser(), config)
    if not config.resume and "SLURM_RESTART_COUNT" not in os.environ:
        return Start(folder)
    if checkpoints_in(folder):
        return _go_on(folder, config)
    same = [run for run in _runs(root) if not find_differences(config, run.card["config"])] if root else []
    found = next((run for run in same if not run.finished), same[0] if same else None)
    if found is None:
        print(f"{root or folder} has no run of these settings to go on with; a new one begins in {folder}")
        return Start(folder)
    discard(folder)
    return _go_on(found.folder, config)


def recall(arguments: list[str]) -> list[str]:
    """Arguments with `resume=FOLDER` as the whole command of that run, and what else they hold behind it."""
    given = [argument for argument in arguments if argument.startswith("resume=")]
    config, _ = compose("train", check_command("train", given[-1:], complete=False))
    if not isinstance(config.resume, str):
        return arguments
    if {"-m", "--multirun"} & set(arguments):
        raise UserError("resume=FOLDER goes on with one run, and -m runs several; give one of them")
    folder = Path(config.resume).expanduser()
    return [*arguments_of(folder), *arguments, f"hydra.run.dir={quoted(str(folder))}", "hydra.output_subdir=null"]


def arguments_of(folder: Path) -> list[str]:
    """Those of the command that a run in this folder was begun with."""
    stages = folder / STAGES
    arguments = json.loads(stages.read_text())["arguments"] if stages.is_file() else peek(folder).card["arguments"]
    return list(arguments)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs from training in the folder, and remove what a killed one had not written to its end.

    Raises `UserError` where another one trains in it.
    """
    with ExitStack() as locks:
        with ending_together():
            if rank() == 0:
                locks.enter_context(_locked(folder))
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = hold(folder / LOCK)
    if file is None:
        raise UserError(f"{folder} is being trained by another process; wait for its end, or stop it")
    with file:
        for name in (BEST, LAST, METRICS, f"*{NOT_FINITE}"):
            for left in folder.glob(f"{name}{UNFINISHED}"):
                left.unlink()
        yield


def refuse_other_data(start: Start, card: Mapping[str, Any]) -> None:
    """Raise a `UserError` where the run that goes on had other captions, words or regions than the card tells."""
    parts = {"splits": "other captions or images", "vocabulary": "another vocabulary", "encoder": "another encoder"}
    for part, what in parts.items():
        if start.checkpoint and start.card[part] != card[CARD][part]:
            raise UserError(f"{start.folder} was trained with {what}; give it what it had, or leave resume out")


def _go_on(folder: Path, config: DictConfig) -> Start:
    file = _whole_checkpoint(folder)
    start, progress = _read(file)
    differences = find_differences(config, start.card["config"])
    begun_with = start.card["config"].get("initial_weights")
    if differences and _is_moved(config.initial_weights, begun_with):
        differences = find_differences(config, {**start.card["config"], "initial_weights": config.initial_weights})
        if not differences:
            print(f"{folder} began with {begun_with}, which is now taken to be {config.initial_weights}")
    if differences:
        raise UserError(
            f"{folder} has other settings: {listed(differences, shown=5)}; give its own (resume={folder} alone does), "
            "or leave resume out for a new run"
        )
    if not start.finished:
        print(f"{folder} goes on after step {progress['global_step']}, in epoch {progress['epoch'] + 1}")
    return start


def _is_moved(ours: str, theirs: str | None) -> bool:
    """Whether these name what may be one best checkpoint in two places: a run that goes on has its own weights, and is
    held against its vocabulary and encoder."""
    if theirs is None or {Path(ours).name, Path(theirs).name} != {BEST}:
        return False
    now, before = Path(ours).expanduser(), Path(theirs).expanduser()
    return now.is_file() and (not before.is_file() or filecmp.cmp(now, before, shallow=False))


def discard(folder: Path) -> None:
    """Remove the folder of a run that does not begin, in which Hydra has written the configuration."""
    shutil.rmtree(folder / "config", ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def checkpoints_in(folder: Path) -> list[Path]:
    """What the run could go on from, the newest first."""
    return [folder / name for name in (LAST, PREVIOUS) if (folder / name).is_file()]


def _whole_checkpoint(folder: Path) -> Path:
    """The newest one that is not damaged; with a warning if it is not the last."""
    files = _existing(folder)
    damages = {file: damage for file in files if (damage := find_damage(file))}
    whole = next((file for file in files if file not in damages), None)
    if whole is None:
        told = "; ".join(f"{file.name}: {damage}" for file, damage in damages.items())
        raise UserError(f"{folder} has no checkpoint that is not damaged ({told}); train again without resume")
    for file, damage in damages.items():
        if file.name == LAST:
            minutes = (file.stat().st_mtime - whole.stat().st_mtime) / 60
            print(
                f"warning: {file} is damaged ({damage}); {whole.name} was written {minutes:.1f} minutes before it, and "
                "what was trained since then is trained again",
                file=sys.stderr,
            )
    return whole


def _existing(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"the run {folder} is no folder; give the one that holds its {LAST}")
    files = checkpoints_in(folder)
    if not files:
        raise UserError(f"{folder} has no {LAST} to go on from; train again without resume")
    return files


def _runs(root: Path) -> list[Start]:
    """Those below a folder, the newest first."""
    files = sorted([*root.rglob(LAST), *root.rglob(PREVIOUS)], key=lambda file: file.stat().st_mtime, reverse=True)
    runs = []
    for folder in dict.fromkeys(file.parent for file in files):
        with suppress(UserError):  # of another version, or damaged
            runs.append(peek(folder))
    return runs


def is_trained(folder: Path) -> bool:
    """Whether the run in a folder has come to its end."""
    return (folder / LAST).is_file() and peek(folder).finished


def peek(folder: Path) -> Start:
    """What the newest checkpoint of a run says that can be opened; whether it is whole would take long to tell."""
    files = _existing(folder)
    for file in files[:-1]:
        with suppress(UserError):
            return _read(file)[0]
    return _read(files[-1])[0]


def _read(file: Path) -> tuple[Start, Mapping[str, Any]]:
    """Where a checkpoint lets training begin, and all that is in it. Raises `UserError` for one of before there was
    `resume`."""
    content = load(file, mmap=True)
    card, callbacks = content[CARD], content.get("callbacks", {})
    if LastCheckpoint.__qualname__ not in callbacks or "arguments" not in card:
        raise UserError(f"{file} was written by a version that could not go on; train again without resume")
    selected = next(state for name, state in callbacks.items() if name.startswith(BestCheckpoint.__qualname__))
    best = selected["best_model_score"]
    finished = callbacks[LastCheckpoint.__qualname__]["finished"]
    return Start(file.parent, file, card, finished, None if best is None else float(best)), content
