"""The run and the checkpoint from which training resumes."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, read_write

from showattendtell.config.compose import find_differences
from showattendtell.config.entry_point import unresolved
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.config.validation import check_targets, find_targets, sentence, to_plain
from showattendtell.errors import UserError, listed
from showattendtell.loading.checkpoints import METADATA_KEY, check_metadata, find_damage, load, read_checkpoint
from showattendtell.runtime.distributed import raise_together, rank
from showattendtell.runtime.files import (
    BEST,
    LAST,
    LOCK,
    METRICS,
    PREVIOUS,
    TIMES,
    UNFINISHED,
    expand_home,
    lock_file,
    write_errors,
)
from showattendtell.settings import Node
from showattendtell.training.checkpointing import BestCheckpoint, LastCheckpoint

READING_ERRORS = (AttributeError, LookupError, OverflowError, RuntimeError, StopIteration, TypeError, ValueError)
"""Errors of reading entries of a checkpoint that anyone may have written."""

PROCESSES = ("trainer.devices", "trainer.num_nodes", "trainer.strategy", "data.num_workers", "features.workers")
"""Settings of the command line alone: a run's folder, which may be from others, starts no processes."""


class ResumePoint(NamedTuple):
    """The run and the checkpoint from which training starts.

    Attributes:
        folder: folder of the run.
        checkpoint: the checkpoint that it resumes from, if any.
        metadata: that of the checkpoint.
        finished: whether the run is complete.
        best: the best value of the metric `monitor`, if there is one.
        epoch, step: how many are complete.
        extended: whether the run now has more epochs than its stored configuration.
    """

    folder: Path
    checkpoint: Path | None = None
    metadata: Mapping[str, Any] = {}
    finished: bool = False
    best: float | None = None
    epoch: int = 0
    step: int = 0
    extended: bool = False


def find_start(resume: bool | str, record: Mapping[str, Any], folder: Path, root: Path | None) -> ResumePoint:
    """Return the start of a training that the setting `resume` asks for; a requeued SLURM job resumes automatically.

    Args:
        record: the other settings of the training, as plain data.
        folder: folder of a new run.
        root: folder to search for runs with the same settings; None to use `folder` itself.

    Raises:
        UserError: the run has no intact checkpoint or other settings.
    """
    if isinstance(resume, str):
        return _resume(run_of(resume), record)
    if not (resume or "SLURM_RESTART_COUNT" in os.environ):
        _check_unused(folder)
        return ResumePoint(folder)
    if checkpoints_in(folder):
        return _resume(folder, record)
    runs = _runs_of(record, root) if root else []
    found = min(runs, key=lambda run: run.finished, default=None)  # the newest unfinished one, or else the newest
    if found:
        return _resume(found.folder, record)
    if (folder / BEST).is_file():
        raise UserError(f"{folder} has no {LAST} to resume from, but a {BEST}; set hydra.run.dir to another folder")
    print(f"{root or folder} has no run with these settings to resume; a new one starts in {folder}")
    return ResumePoint(folder)


def _runs_of(record: Mapping[str, Any], root: Path) -> Iterator[ResumePoint]:
    """Yield the runs with these settings, newest first."""
    # unlike `Path.rglob`, `os.walk` goes on where another run removes a folder
    files = [Path(place, name) for place, _, names in os.walk(root) for name in (LAST, PREVIOUS) if name in names]
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    for folder in dict.fromkeys(file.parent for file in files):
        with suppress(UserError):  # from another version, or damaged
            run = peek(folder)
            if not find_differences(record, run.metadata["config"]):
                yield run


def run_of(name: str) -> Path:
    """Return the folder of a run, which may be named by its last checkpoint.

    Raises:
        UserError: for another checkpoint, whose weights the run would not resume from.
    """
    path = expand_home(name)
    if path.suffix != ".ckpt":
        return path
    if path.name != LAST or not path.is_file():
        raise UserError(f"{name} is not the {LAST} of a run, from which it resumes; init_from=... takes others")
    return path.parent


def _check_unused(folder: Path) -> None:
    """Raise a `UserError` if the folder of a new run has files, except logs and those of a run without checkpoints."""
    begun = (METRICS, TIMES) if (folder / LOCK).exists() else ()
    files = sorted(path.name for path in folder.glob("[!.]*") if path.suffix != ".log" and path.name not in begun)
    if files:
        raise UserError(
            f"{folder} has files of an earlier run ({listed(files)}); resume it with resume=true, delete it, or set "
            "hydra.run.dir to another folder"
        )


def restore(config: DictConfig) -> dict[str, Any]:
    """Return the stored settings of the run that `resume` names, with those of this command line on top, as plain data.

    The stored ones are data: their texts are literal, their targets are those that files may name, and they start no
    processes. The options that the run chose count as those of this command.

    Args:
        config: the configuration of this command alone.

    Raises:
        UserError: the stored configuration is of another version, or names a target that is neither trusted nor typed
            again.
    """
    about: Any = HydraConfig.get()
    start = peek(run_of(config.resume))
    assert start.checkpoint
    settings, own = start.metadata["config"], to_plain(config)
    for name in PROCESSES:
        part, _, key = name.partition(".")
        settings[part].pop(key, None)
    typed = [line.partition("=")[0].replace("/", ".") for line in unresolved(about.overrides.task)]
    for name in (*PROCESSES, *typed):
        try:
            value = reduce(getitem, name.split("."), own)
        except LookupError:
            if name in typed:
                raise UserError(f"{name} changes other settings, and a resumed run has its own; leave it out") from None
            continue
        *parts, last = name.split(".")
        reduce(_node, parts, settings)[last] = value
    if differing := sorted({*settings} ^ {*own}):
        raise UserError(
            f"{start.checkpoint} was altered, or is of another version, which differs in the settings "
            f"{listed(differing)}; install that version, or leave resume out"
        )
    check_targets(settings, start.checkpoint, find_targets(own))
    with read_write(about):
        about.runtime.choices.update(start.metadata["choices"])
    return settings


def _node(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a node of settings, which replaces a value of that name."""
    if not isinstance(settings.get(name), dict):
        settings[name] = {}
    node: dict[str, Any] = settings[name]
    return node


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock the folder against other runs, and remove incomplete files of a killed run."""
    lock: Any = nullcontext()
    with raise_together():
        if rank() == 0:
            with write_errors(folder, "set hydra.run.dir to another folder"):
                folder.mkdir(exist_ok=True)
            lock = lock_file(folder / LOCK)
            if lock is None:
                raise UserError(f"{folder} is being trained by another process; wait for its end, or stop it")
            for partial in folder.glob(f"*.*.*{UNFINISHED}"):  # as `atomic_write` names them
                partial.unlink()
    with lock:
        yield


def check_sizes(start: ResumePoint, encoder: Node, attention: Node, decoder: Node) -> None:
    """Raise a `UserError` if a part of the model is larger than its weights in the checkpoint, if there is one: in a
    folder from others, a size may be any number.

    The model is built on the meta device, which allocates no memory, and where regions are not measured.
    """
    if start.checkpoint is None:
        return
    metadata, state = read_checkpoint(start.checkpoint)
    try:
        with torch.device("meta"):
            network = build(encoder.changed(weights="random"))
            captioner = build_captioner(attention, decoder, max(1, network.region_dim), len(metadata["vocabulary"]))
        parts = network.state_dict(prefix="encoder.") | captioner.state_dict(prefix="captioner.")
        fits = all(name in state and weights.numel() <= state[name].numel() for name, weights in parts.items())
    except (RuntimeError, UserError):  # of a tensor that no memory can have
        fits = False
    if not fits:
        raise UserError(f"{start.checkpoint} was altered: its weights do not fit its settings; leave resume out")


def check_data(start: ResumePoint, metadata: Mapping[str, Any]) -> None:
    """Raise a `UserError` if captions, vocabulary or regions of the resumed run differ from its metadata."""
    parts = {"splits": "other captions or images", "vocabulary": "another vocabulary", "encoder": "another encoder"}
    for part, difference in parts.items():
        if start.checkpoint and start.metadata.get(part) != metadata[METADATA_KEY].get(part):
            raise UserError(
                f"{start.folder} was trained with {difference}; give it the same settings, or leave resume out"
            )


def _resume(folder: Path, record: Mapping[str, Any]) -> ResumePoint:
    start = _read(_intact_checkpoint(folder))
    stored = start.metadata["config"]
    stored_epochs, max_epochs = stored["trainer"].get("max_epochs"), record["trainer"].get("max_epochs")
    is_extended = isinstance(max_epochs, int) and isinstance(stored_epochs, int) and max_epochs > stored_epochs > 0
    if is_extended:
        stored = {**stored, "trainer": {**stored["trainer"], "max_epochs": max_epochs}}
    stored = {**stored, "init_from": record["init_from"]}  # may have moved; the run has its own weights by now
    if differences := find_differences(record, stored):
        raise UserError(
            f"{folder} has other settings: {listed(differences, shown=5)}; give its own, or leave resume out for a new "
            "run"
        )
    if is_extended:
        is_short = start.epoch < stored_epochs or start.step == stored["trainer"].get("max_steps")
        if start.finished and is_short:  # it would stop again immediately
            best = folder / (LAST if start.best is None else BEST)
            raise UserError(
                f"{folder} ended after {start.epoch} of {stored_epochs} epochs (early stopping, trainer.max_steps or "
                f"trainer.max_time), so trainer.max_epochs cannot extend it; start a new run with init_from={best}"
            )
        start = start._replace(finished=False, extended=True)
        print(f"{folder} is extended from {stored_epochs} to {max_epochs} epochs")
    if not start.finished:
        print(f"{folder} resumes after step {start.step}, in epoch {start.epoch + 1}")
    return start


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints that the run can resume from, newest first."""
    return [folder / name for name in (LAST, PREVIOUS) if (folder / name).is_file()]


def _intact_checkpoint(folder: Path) -> Path:
    """Return the newest intact checkpoint, with a warning if it is not the last one."""
    reasons = []
    for file in checkpoints_in(folder):
        if damage := find_damage(file):
            reasons.append(f"{file} is damaged ({damage})")
            continue
        if reasons:
            print(
                f"warning: {reasons[0]}; {file.name} was written before it, and what was trained since then is trained "
                "again",
                file=sys.stderr,
            )
        return file
    if not reasons:
        raise UserError(f"{folder} has no {LAST} to resume from; give the folder of a run, or leave resume out")
    raise UserError(f"{folder} has no intact checkpoint; {'; '.join(reasons)}; train again without resume")


def peek(folder: Path) -> ResumePoint:
    """Read the newest checkpoint of a run that opens; a complete check would take long."""
    for file in checkpoints_in(folder):
        with suppress(UserError):
            return _read(file)
    return _read(_intact_checkpoint(folder))  # which raises its error


def _read(file: Path) -> ResumePoint:
    """Return the start of training from a checkpoint.

    Raises:
        UserError: the checkpoint was altered, or has another origin.
    """
    content = load(file, mmap=True)
    metadata, callbacks = content[METADATA_KEY], content.get("callbacks", {})
    check_metadata(metadata, file)
    try:
        selected = next(state for name, state in callbacks.items() if name.startswith(BestCheckpoint.__qualname__))
        best = selected["best_model_score"]
        finished = bool(callbacks[LastCheckpoint.__qualname__]["finished"])
        for name in PROCESSES:
            metadata["config"][name.partition(".")[0]].keys()  # raises if it is no mapping
        best, epoch, step = None if best is None else float(best), int(content["epoch"]), int(content["global_step"])
        return ResumePoint(file.parent, file, metadata, finished, best, epoch, step)
    except READING_ERRORS as error:
        raise UserError(
            f"{file} cannot be resumed ({sentence(error)}): it was altered, or train did not write it; leave resume out"
        ) from None
