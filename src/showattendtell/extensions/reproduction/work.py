"""Runs the commands of this package one after the other, as a user would."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from showattendtell.config.command_line import as_value
from showattendtell.data.parsing import read_text
from showattendtell.errors import UserError
from showattendtell.extensions.reproduction.outcome import make_table, write
from showattendtell.extensions.reproduction.runs import (
    TableRun,
    budget,
    captions_file,
    check_settings,
    data_settings,
    expected_seconds,
    find_other_settings,
    finished_runs,
    given_settings,
    make_ensembles,
    note_beginning,
    runs_with_other_settings,
)
from showattendtell.extensions.reproduction.tables import PaperTableConfig, ScoringPlan, setting_of
from showattendtell.runtime.files import BEST, LOCK, duration, exists_error, file_lock, lock_file, read_times
from showattendtell.runtime.subprocesses import Subcommands

NUM_PHOTOGRAPHS = 20


class CommandRunner(Subcommands):
    """Context manager that runs commands in turn. Signals are forwarded to the current one and then end the program."""

    def __exit__(self, *about: object) -> None:
        super().__exit__(*about)
        if self.received_signal:
            print("\nstopped; the same command resumes from here", file=sys.stderr)

    def run(self, command: str, *settings: str) -> None:
        """Print the command and run it.

        Raises:
            UserError: the command fails.
            SystemExit: this process received a signal.
        """
        line = f"python -m showattendtell.{shlex.join([command, *settings])}"
        print(f"\n$ {line}", flush=True)
        status = self.status_of(command, *settings)
        if self.received_signal:
            sys.exit(128 + self.received_signal)
        if status:
            raise UserError(f"{command} ended with status {status}; its output is above, after $ {line}")


def print_plan(table: PaperTableConfig, runs: Sequence[TableRun], config: DictConfig) -> None:
    """Print the progress and the remaining training time of each run, and the total."""
    title = f"{table.name}: {len(runs)} run{'s' * (len(runs) > 1)}"
    table_view = Table("recipe", "seed", "state", title=title, title_justify="left")
    table_view.add_column("training left", justify="right")
    left = []
    for run in runs:
        minutes = None if budget(config) else table.recipes[run.recipe].minutes
        left.append(seconds := expected_seconds(run, runs, minutes))
        remaining = "?" if seconds is None else duration(seconds) if seconds else ""
        table_view.add_row(run.recipe, str(run.seed), _state(run), remaining)
    console = Console(highlight=False)
    console.print(table_view)
    todo, unknown, known_seconds = sum(not run.is_finished for run in runs), left.count(None), sum(filter(None, left))
    if not todo:
        console.print("nothing to train: all runs are finished")
    elif not unknown and not known_seconds:
        console.print(f"nothing to train: {todo} to be scored")
    else:
        others = f" and {unknown} of unknown length" if unknown else ""
        time = f"about {duration(known_seconds)}{others}" if known_seconds else "for an unknown time"
        console.print(f"{todo} to do: they train {time}; storing grids and scoring come on top", soft_wrap=True)


def _state(run: TableRun) -> str:
    trained = "" if run.is_mean else f", {run.epochs} epochs in {duration(sum(read_times(run.folder)))}"
    if run.is_finished:
        return f"finished{trained}"
    if run.is_trained:
        return f"{'averaged' if run.is_mean else 'trained'}{trained}, to be scored"
    if run.is_mean:
        return "to be averaged"
    if run.is_begun:
        return f"{run.epochs} of {run.num_epochs or 'any number of'} epochs"
    return "to be trained"


def reproduce(table: PaperTableConfig, runs: Sequence[TableRun], folder: Path, config: DictConfig) -> None:
    """Run what is neither finished nor running in another worker, and write the table of the finished runs.

    Raises:
        UserError: at the end, with a sentence for each run that failed.
    """
    is_own = (folder / LOCK).exists() or any(run.folder.exists() for run in runs)
    if not is_own and folder.is_dir() and any(folder.iterdir()):
        raise exists_error(folder)
    with CommandRunner() as commands:
        errors = carry_out(runs, folder, commands, config)
        errors += score_ensembles(table, runs, folder, commands, config)
        with file_lock(folder / LOCK):
            errors += write_outcome(table, runs, folder, commands, config)
    if errors:
        raise UserError("\n  ".join([f"{len(errors)} of the table's rows failed:", *errors]))


def carry_out(runs: Sequence[TableRun], folder: Path, commands: CommandRunner, config: DictConfig) -> list[str]:
    """Train and score the unfinished runs; return a sentence for each run that fails.

    If none has started, data and encoder are checked first, since an error there would affect every run. Runs of
    another worker are skipped, and so are second stages that depend on them, unless those finish in the meantime.
    """
    left = [run for run in runs if not run.is_finished]
    if left and not any(run.is_begun for run in runs):
        with file_lock(folder / LOCK):
            commands.run("prepare", *left[0].arguments)
    errors: list[str] = []
    took_any = True
    while took_any:
        passed_over = [run for run in left if not _take(run, commands, config, errors)]
        took_any = len(passed_over) < len(left)
        left = passed_over
    return errors


def _take(run: TableRun, commands: CommandRunner, config: DictConfig, errors: list[str]) -> bool:
    """Carry out a run, or record its error; return False if another worker has it or if it cannot start yet."""
    lock = _hold(run.scoring)
    if lock is None:
        return False
    with lock, _noting(errors, run.title):
        check_settings([run])  # another worker may have changed them since
        if not run.can_begin:
            return False
        if not run.is_finished:
            if not run.scoring.was_scored:
                _train(run, commands, config)
            score(run.scoring, commands, config)
    return True


def _train(run: TableRun, commands: CommandRunner, config: DictConfig) -> None:
    """Train or average; complete training ends at once when resumed."""
    if not run.is_begun:
        note_beginning(run)
    if run.writers:
        _caption_training_images(run.writers, commands, config)
    if run.is_mean and (run.folder / BEST).is_file():  # averaged by a command that was killed before it was scored
        return
    if run.is_mean:
        parts = [str(part.folder / BEST) for part in run.dependencies]
        commands.run("average", f"checkpoint={as_value(parts)}", f"output={as_value(str(run.folder / BEST))}")
    else:
        commands.run("train", *run.arguments, f"hydra.run.dir={as_value(str(run.folder))}", "resume=true")


def _caption_training_images(writers: ScoringPlan, commands: CommandRunner, config: DictConfig) -> None:
    """Write the captions that a run learns from, unless there are captions of these models."""
    file = captions_file(writers)
    with file_lock(file.with_suffix(LOCK)):
        if not (file.is_file() and writers.is_of_these(file)):
            settings = ["split=train", "metrics=[bleu]", "decoding.beam_size=5", "decoding.min_length=1"]
            _evaluate(writers, [*settings, "decoding.allow_unk=false"], file, ["root"], commands, config)


def _hold(scoring: ScoringPlan) -> TextIO | None:
    """Lock the models for this worker and return the lock file; if another worker trains or scores them, print that and
    return None."""
    lock = lock_file(scoring.folder.with_suffix(LOCK))
    if lock is None:
        print(f"{scoring.title} is being processed by another worker")
    return lock


@contextmanager
def _noting(errors: list[str], title: str) -> Iterator[None]:
    """Record a `UserError` in `errors` instead of raising it."""
    try:
        yield
    except UserError as error:
        errors.append(f"{title}: {error}")


def score(scoring: ScoringPlan, commands: CommandRunner, config: DictConfig) -> None:
    """Compute the missing test results."""
    names = ["root", "entities", "instances"]
    for decoding in scoring.decodings:
        if not scoring.is_scored(decoding):
            _evaluate(scoring, [setting_of(decoding)], scoring.result_file(decoding), names, commands, config)
            if not scoring.is_scored(decoding):
                raise UserError(
                    f"{scoring.result_file(decoding)} has no scores of attention: dataset.entities and "
                    "dataset.instances have no boxes of the test images; leave these settings out"
                )


def _evaluate(
    scoring: ScoringPlan,
    settings: Sequence[str],
    output: Path,
    names: list[str],
    commands: CommandRunner,
    config: DictConfig,
) -> None:
    """Run evaluate with a model or an ensemble, and with the settings `names` of the data set. An earlier result, which
    is of other weights or settings, is removed."""
    output.unlink(missing_ok=True)
    models = [str(file) for file in scoring.models]
    commands.run(
        "evaluate",
        f"checkpoint={as_value(models[0] if len(models) == 1 else models)}",
        *settings,
        f"output={as_value(str(output))}",
        *data_settings(config, names),
        *(setting for setting in given_settings(config) if setting.startswith("cache=")),
    )


def score_ensembles(
    table: PaperTableConfig, runs: Sequence[TableRun], folder: Path, commands: CommandRunner, config: DictConfig
) -> list[str]:
    """Score the ensembles whose models are finished and that no other worker has; return a sentence for each failure.

    A command that asks for no runs scores none.
    """
    errors: list[str] = []
    ensembles = _ensembles(table, runs, finished_runs(table, config, folder), folder) if runs else {}
    for ensemble in ensembles.values():
        if lock := _hold(ensemble):
            with lock, _noting(errors, ensemble.title):
                score(ensemble, commands, config)
    return errors


def _ensembles(
    table: PaperTableConfig, runs: Sequence[TableRun], finished: Sequence[TableRun], folder: Path
) -> dict[str, ScoringPlan]:
    """Return the ensembles of finished runs; an ensemble waits for all requested runs of its recipes."""
    incomplete = {run.recipe for run in runs if not run.is_finished}
    return make_ensembles(table, [run for run in finished if run.recipe not in incomplete], folder)


def write_outcome(
    table: PaperTableConfig, runs: Sequence[TableRun], folder: Path, commands: CommandRunner, config: DictConfig
) -> list[str]:
    """Write the page of photographs and the table of the finished runs; return a sentence for each failure.

    The table includes finished runs that this command does not ask for. A command that asks for no runs
    writes only the table.
    """
    errors = [error for run in runs if run.is_finished for error in find_other_settings(run)]
    finished = finished_runs(table, config, folder)
    ensembles = _ensembles(table, runs, finished, folder)
    page = folder / f"{table.name}-photographs.html"
    photographs = page.name if page.is_file() else None
    if runs:
        with _noting(errors, "photographs"):
            photographs = show_photographs(table, finished, page, commands, config)
    with _noting(errors, "the table"):
        overview = make_table(table, finished, ensembles, _notes(table, finished, ensembles.values(), config))
        if overview:
            write(overview._replace(photographs=photographs), folder, table.name)
        else:
            print(f"no run of table={table.name} is finished with these settings in {folder}, so there is no table yet")
            for error in runs_with_other_settings(table, config, folder):
                print(error)
    return errors


def _notes(
    table: PaperTableConfig, runs: Sequence[TableRun], ensembles: Iterable[ScoringPlan], config: DictConfig
) -> list[str]:
    """Return notes on changed settings, and on recipes, single seeds of them and ensembles that are not finished."""
    notes, missing = [], []
    if cut := budget(config):
        notes.append(f"all runs with other settings than their recipes: {' '.join(cut)}")
    for recipe in table.recipes:
        seeds = {run.seed for run in runs if run.recipe == recipe}
        missing += [f"{recipe}, seed {seed}" for seed in table.seeds if seed not in seeds] if seeds else [recipe]
    missing += [ensemble.title for ensemble in ensembles if not ensemble.is_finished]
    return [*notes, *([f"not finished, and not in the table: {'; '.join(missing)}"] if missing else [])]


def show_photographs(
    table: PaperTableConfig, runs: Sequence[TableRun], page: Path, commands: CommandRunner, config: DictConfig
) -> str | None:
    """Return the name of the table's page of photographs, created if missing or older than the models; None if one of
    its models is not finished."""
    first = {run.recipe: run for run in reversed(runs) if run.is_finished and run.recipe in table.pages}
    if not first or len(first) < len(table.pages):
        return None
    checkpoints = [first[recipe].folder / BEST for recipe in table.pages]
    if not all(file.is_file() for file in checkpoints):
        return page.name if page.is_file() else None
    model, *other_checkpoints = map(str, checkpoints)
    arguments = [
        f"checkpoint={as_value(model)}",
        *([f"compare={as_value(other_checkpoints)}"] if other_checkpoints else []),
        f"number={NUM_PHOTOGRAPHS}",
        setting_of(table.decoding),
        f"output={as_value(str(page))}",
    ]
    record = page.with_suffix(".txt")
    command = "\n".join(arguments)
    is_of_these = page.is_file() and record.is_file() and read_text(record) == command
    if not is_of_these or record.stat().st_mtime < max(file.stat().st_mtime for file in checkpoints):
        page.unlink(missing_ok=True)
        commands.run("caption", "split=test", *arguments, *data_settings(config, ["root"]))
        record.write_text(command)
    return page.name
