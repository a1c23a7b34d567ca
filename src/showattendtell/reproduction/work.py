"""What there is to do for a table, done as far as it is not yet."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig

from showattendtell.config.entry import as_value
from showattendtell.config.reproducing import PaperTable
from showattendtell.errors import UserError
from showattendtell.files import BEST, LOCK, alone, hold
from showattendtell.reproduction.commands import Commands
from showattendtell.reproduction.outcome import tell, write
from showattendtell.reproduction.runs import (
    Run,
    budget,
    data_settings,
    find_other_settings,
    finished_runs,
    given_settings,
    make_ensembles,
    note_beginning,
    refuse_other_settings,
    runs_with_other_settings,
)
from showattendtell.reproduction.scoring import Scoring, setting_of

NUM_PHOTOGRAPHS = 20


def reproduce(table: PaperTable, runs: Sequence[Run], folder: Path, config: DictConfig) -> None:
    """Run what is not finished and not with another worker, and write the table of what is finished.

    Raises `UserError` with a sentence for each run that failed.
    """
    with Commands() as commands:
        faults = carry_out(runs, folder, commands, config)
        faults += score_ensembles(table, runs, folder, commands, config)
        with alone(folder / LOCK):
            faults += write_outcome(table, runs, folder, commands, config)
    if faults:
        raise UserError("\n  ".join([f"{len(faults)} of the table's rows failed:", *faults]))


def score_ensembles(
    table: PaperTable, runs: Sequence[Run], folder: Path, commands: Commands, config: DictConfig
) -> list[str]:
    """Score those of which all models are there, and that no other worker has; a sentence for each that fails.

    A command that asks for no runs scores none.
    """
    faults: list[str] = []
    ensembles = _ensembles(table, runs, finished_runs(table, config, folder), folder) if runs else {}
    for ensemble in ensembles.values():
        held = _hold(ensemble)
        if held:
            with held, _noting(faults, ensemble.title):
                score(ensemble, commands, config)
    return faults


def _ensembles(table: PaperTable, runs: Sequence[Run], finished: Sequence[Run], folder: Path) -> dict[str, Scoring]:
    """Of the finished runs; an ensemble waits for all those of its recipes that the command asks for."""
    unfinished = {run.recipe for run in runs if not run.is_finished}
    return make_ensembles(table, [run for run in finished if run.recipe not in unfinished], folder)


def _hold(scoring: Scoring) -> TextIO | None:
    """The file that the worker holds which trains or scores these models; None where another worker is that, which is
    told."""
    held = hold(scoring.folder.with_suffix(LOCK))
    if held is None:
        print(f"{scoring.title} is with another worker")
    return held


def write_outcome(
    table: PaperTable, runs: Sequence[Run], folder: Path, commands: Commands, config: DictConfig
) -> list[str]:
    """The page of photographs and the table of what is finished; a sentence for what fails.

    The table has all of its runs, those too that this command does not ask for; one that asks for none only writes the
    table.
    """
    faults = [fault for run in runs if run.is_finished for fault in find_other_settings(run)]
    shown = finished_runs(table, config, folder)
    ensembles = _ensembles(table, runs, shown, folder)
    page = page_of(table, folder)
    photographs = page.name if page.is_file() else None
    if runs:
        with _noting(faults, "photographs"):
            photographs = show_photographs(table, shown, folder, commands, config)
    with _noting(faults, "the table"):
        overview = tell(table, shown, ensembles, _notes(table, shown, ensembles.values(), config))
        if overview:
            write(overview._replace(photographs=photographs), folder, table.name)
        else:
            print(f"no run of table={table.name} is finished with these settings in {folder}, so there is no table yet")
            for fault in runs_with_other_settings(table, config, folder):
                print(fault)
    return faults


def _notes(table: PaperTable, runs: Sequence[Run], ensembles: Iterable[Scoring], config: DictConfig) -> list[str]:
    """What a reader should know of the runs: what was cut, and what is not there."""
    cut, lacking = budget(config), list(_lacking(table, runs))
    lacking += [ensemble.title for ensemble in ensembles if not ensemble.is_finished]
    notes = [f"all runs with other settings than their recipes: {' '.join(cut)}"] if cut else []
    return [*notes, *([f"not finished, and not in the table: {'; '.join(lacking)}"] if lacking else [])]


def _lacking(table: PaperTable, runs: Sequence[Run]) -> Iterator[str]:
    """The recipes, or single seeds of them, of which there is no finished run."""
    for recipe in table.recipes:
        there = {run.seed for run in runs if run.recipe == recipe}
        yield from [f"{recipe}, seed {seed}" for seed in table.seeds if seed not in there] if there else [recipe]


def carry_out(runs: Sequence[Run], folder: Path, commands: Commands, config: DictConfig) -> list[str]:
    """Train what is not trained, and score on the test images what is; a sentence for each run that fails.

    Before the first of all, data and encoder are checked: a fault in them would be one of every run. What another
    worker has is left to it, and so is a second stage that begins with it, unless that is finished meanwhile.
    """
    left = [run for run in runs if not run.is_finished]
    if left and not any(run.is_begun for run in runs):
        with alone(folder / LOCK):
            commands.run("prepare", *left[0].arguments)
    faults: list[str] = []
    took_any = True
    while took_any:
        passed_over = [run for run in left if not _take(run, commands, config, faults)]
        took_any = len(passed_over) < len(left)
        left = passed_over
    return faults


def _take(run: Run, commands: Commands, config: DictConfig, faults: list[str]) -> bool:
    """Carry out a run, or note its fault; False for one that another worker has or that cannot begin yet."""
    held = _hold(run.scoring)
    if held is None:
        return False
    with held, _noting(faults, run.title):
        refuse_other_settings([run])  # of another worker since
        if not run.can_begin:
            return False
        if not run.is_finished:
            _carry_out(run, commands, config)
    return True


@contextmanager
def _noting(faults: list[str], title: str) -> Iterator[None]:
    """Go on behind a fault, which is added to the others."""
    try:
        yield
    except UserError as fault:
        faults.append(f"{title}: {fault}")


def _carry_out(run: Run, commands: Commands, config: DictConfig) -> None:
    """What was scored is not trained again; training that is finished otherwise ends at once."""
    if not run.scoring.was_scored:
        if not run.is_begun:
            note_beginning(run)
        if run.is_mean:
            _average(run, commands)
        else:
            _train(run, commands)
    score(run.scoring, commands, config)


def _train(run: Run, commands: Commands) -> None:
    at = f"hydra.run.dir={as_value(str(run.folder))}"
    commands.run("train", *run.arguments, at, *(["resume=true"] if run.is_begun else []))


def _average(run: Run, commands: Commands) -> None:
    parts = [str(part.folder / BEST) for part in run.before]
    commands.run("average", f"checkpoint={as_value(parts)}", f"output={as_value(str(run.folder / BEST))}")


def score(scoring: Scoring, commands: Commands, config: DictConfig) -> None:
    """Make the test results that are missing."""
    models = [str(file) for file in scoring.models]
    places = [setting for setting in given_settings(config) if setting.startswith("cache=")]
    for decoding in scoring.decodings:
        if not scoring.is_scored(decoding):
            commands.run(
                "evaluate",
                f"checkpoint={as_value(models[0] if len(models) == 1 else models)}",
                setting_of(decoding),
                f"output={as_value(str(scoring.result_file(decoding)))}",
                *data_settings(config, ["root", "entities", "instances"]),
                *places,
            )
            if not scoring.is_scored(decoding):
                raise UserError(
                    f"{scoring.result_file(decoding)} has no figures of boxes, which dataset.entities and "
                    "dataset.instances give for the test images; leave out what does not know these"
                )


def page_of(table: PaperTable, folder: Path) -> Path:
    return folder / f"{table.name}-photographs.html"


def show_photographs(
    table: PaperTable, runs: Sequence[Run], folder: Path, commands: Commands, config: DictConfig
) -> str | None:
    """The name of the table's page of photographs, made now where there is none of these models as they are; None where
    one of them is not finished."""
    first = {run.recipe: run for run in reversed(runs) if run.is_finished and run.recipe in table.pages}
    if not first or len(first) < len(table.pages):
        return None
    page = page_of(table, folder)
    checkpoints = [first[recipe].folder / BEST for recipe in table.pages]
    if not all(file.is_file() for file in checkpoints):
        return page.name if page.is_file() else None
    model, *others = map(str, checkpoints)
    arguments = [
        f"checkpoint={as_value(model)}",
        *([f"compare={as_value(others)}"] if others else []),
        f"number={NUM_PHOTOGRAPHS}",
        setting_of(table.decoding),
        f"output={as_value(str(page))}",
    ]
    made = page.with_suffix(".txt")
    command = "\n".join(arguments)
    is_of_these = page.is_file() and made.is_file() and made.read_text() == command
    if not is_of_these or made.stat().st_mtime < max(file.stat().st_mtime for file in checkpoints):
        commands.run("page", *arguments, *data_settings(config, ["root"]))
        made.write_text(command)
    return page.name
