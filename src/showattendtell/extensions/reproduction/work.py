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
from showattendtell.runtime.launched import Subcommands

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
        seconds = expected_seconds(run, runs, minutes)
        left.append(seconds)
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


class Reproduction:
    """The commands that train and score the runs of a table, and the table itself.

    Args:
        runs: the runs that the command asks for; none writes only the table of the finished runs.
        folder: of the runs and the table.
        config: of the command.
    """

    def __init__(
        self,
        table: PaperTableConfig,
        runs: Sequence[TableRun],
        folder: Path,
        config: DictConfig,
        commands: CommandRunner,
    ):
        self.table, self.runs, self.folder, self.config, self.commands = table, runs, folder, config, commands
        self.errors: list[str] = []

    def reproduce(self) -> None:
        """Run what is neither finished nor running in another worker, and write the table of the finished runs.

        Raises:
            UserError: at the end, with a sentence for each run that failed.
        """
        folder = self.folder
        is_own = (folder / LOCK).exists() or any(run.folder.exists() for run in self.runs)
        if not is_own and folder.is_dir() and any(folder.iterdir()):
            raise exists_error(folder)
        with self.commands:
            self.carry_out()
            self.score_ensembles()
            with file_lock(folder / LOCK):
                self._write_outcome()
        if self.errors:
            raise UserError("\n  ".join([f"{len(self.errors)} of the table's rows failed:", *self.errors]))

    def carry_out(self) -> None:
        """Train and score the unfinished runs.

        If none has started, data and encoder are checked first, since an error there would affect every run. Runs of
        another worker are skipped, and so are second stages that depend on them, unless those finish in the meantime.
        """
        left = [run for run in self.runs if not run.is_finished]
        if left and not any(run.is_begun for run in self.runs):
            with file_lock(self.folder / LOCK):
                self.commands.run("prepare", *left[0].arguments)
        num_before = None
        while len(left) != num_before:
            num_before = len(left)
            left = [run for run in left if not self._take(run)]

    def _take(self, run: TableRun) -> bool:
        """Carry out a run, or record its error; return False if another worker has it or if it cannot start yet."""
        lock = _hold(run.scoring)
        if lock is None:
            return False
        with lock, self._recording_errors(run.title):
            check_settings([run])  # another worker may have changed them since
            if not run.can_begin:
                return False
            if not run.is_finished:
                if not run.scoring.was_scored:
                    self._train(run)
                self._score(run.scoring)
        return True

    @contextmanager
    def _recording_errors(self, title: str) -> Iterator[None]:
        """Record a `UserError` instead of raising it."""
        try:
            yield
        except UserError as error:
            self.errors.append(f"{title}: {error}")

    def _train(self, run: TableRun) -> None:
        """Train or average; complete training ends at once when resumed."""
        if not run.is_begun:
            note_beginning(run)
        if run.writers:
            self._caption_training_images(run.writers)
        if not run.is_mean:
            folder = as_value(str(run.folder))
            self.commands.run("train", *run.arguments, f"hydra.run.dir={folder}", "resume=true")
        elif not (run.folder / BEST).is_file():  # else averaged by a command that was killed before it was scored
            parts = [str(part.folder / BEST) for part in run.dependencies]
            output = as_value(str(run.folder / BEST))
            self.commands.run("average", f"checkpoint={as_value(parts)}", f"output={output}")

    def _caption_training_images(self, writers: ScoringPlan) -> None:
        """Write the captions that a run learns from, unless there are captions of these models."""
        file = captions_file(writers)
        with file_lock(file.with_suffix(LOCK)):
            if not (file.is_file() and writers.is_of_these(file)):
                settings = ["decoding.beam_size=5", "decoding.min_length=1", "decoding.allow_unk=false"]
                self._evaluate(writers, ["split=train", "metrics=[bleu]", *settings], file, ["root"])

    def _score(self, scoring: ScoringPlan) -> None:
        """Compute the missing test results."""
        for decoding in scoring.decodings:
            if not scoring.is_scored(decoding):
                file = scoring.result_file(decoding)
                self._evaluate(scoring, [setting_of(decoding)], file, ["root", "entities", "instances"])
                if not scoring.is_scored(decoding):
                    raise UserError(
                        f"{file} has no scores of attention: dataset.entities and dataset.instances have no boxes of "
                        "the test images; leave these settings out"
                    )

    def _evaluate(self, scoring: ScoringPlan, settings: Sequence[str], output: Path, names: list[str]) -> None:
        """Run evaluate with a model or an ensemble, and with the settings `names` of the data set. An earlier result,
        which is of other weights or settings, is removed."""
        output.unlink(missing_ok=True)
        models = [str(file) for file in scoring.models]
        self.commands.run(
            "evaluate",
            f"checkpoint={as_value(models[0] if len(models) == 1 else models)}",
            *settings,
            f"output={as_value(str(output))}",
            *data_settings(self.config, names),
            *(setting for setting in given_settings(self.config) if setting.startswith("cache=")),
        )

    def score_ensembles(self) -> None:
        """Score the ensembles whose models are finished and that no other worker has."""
        ensembles = self._ensembles(self._finished_runs()) if self.runs else {}
        for ensemble in ensembles.values():
            if lock := _hold(ensemble):
                with lock, self._recording_errors(ensemble.title):
                    self._score(ensemble)

    def _finished_runs(self) -> list[TableRun]:
        """Return all finished runs of the table, including those that this command does not ask for."""
        return finished_runs(self.table, self.config, self.folder)

    def _ensembles(self, finished: Sequence[TableRun]) -> dict[str, ScoringPlan]:
        """Return the ensembles of finished runs; an ensemble waits for all requested runs of its recipes."""
        incomplete = {run.recipe for run in self.runs if not run.is_finished}
        return make_ensembles(self.table, [run for run in finished if run.recipe not in incomplete], self.folder)

    def _write_outcome(self) -> None:
        """Write the page of photographs and the table of the finished runs."""
        self.errors += [error for run in self.runs if run.is_finished for error in find_other_settings(run)]
        finished = self._finished_runs()
        ensembles = self._ensembles(finished)
        page = self.folder / f"{self.table.name}-photographs.html"
        if self.runs:
            with self._recording_errors("photographs"):
                self._show_photographs(finished, page)
        with self._recording_errors("the table"):
            overview = make_table(self.table, finished, ensembles, self._notes(finished, ensembles.values()))
            if overview:
                photographs = page.name if page.is_file() else None
                write(overview._replace(photographs=photographs), self.folder, self.table.name)
            else:
                print(
                    f"no run of table={self.table.name} is finished with these settings in {self.folder}, so there is "
                    "no table yet"
                )
                for error in runs_with_other_settings(self.table, self.config, self.folder):
                    print(error)

    def _notes(self, finished: Sequence[TableRun], ensembles: Iterable[ScoringPlan]) -> list[str]:
        """Return notes on changed settings, and on recipes, single seeds of them and ensembles that are not
        finished."""
        notes, missing = [], []
        if changed := budget(self.config):
            notes.append(f"all runs with other settings than their recipes: {' '.join(changed)}")
        for recipe in self.table.recipes:
            seeds = {run.seed for run in finished if run.recipe == recipe}
            left = [f"{recipe}, seed {seed}" for seed in self.table.seeds if seed not in seeds]
            missing += left if seeds else [recipe]
        missing += [ensemble.title for ensemble in ensembles if not ensemble.is_finished]
        if missing:
            notes.append(f"not finished, and not in the table: {'; '.join(missing)}")
        return notes

    def _show_photographs(self, finished: Sequence[TableRun], page: Path) -> None:
        """Write the table's page of photographs if it is missing or older than the models, and if all these are
        finished."""
        first = {run.recipe: run for run in reversed(finished)}
        checkpoints = [first[recipe].folder / BEST for recipe in self.table.pages if recipe in first]
        if not checkpoints or len(checkpoints) < len(self.table.pages) or not all(map(Path.is_file, checkpoints)):
            return
        model, *other_models = map(str, checkpoints)
        arguments = [f"checkpoint={as_value(model)}", f"number={NUM_PHOTOGRAPHS}", setting_of(self.table.decoding)]
        if other_models:
            arguments.append(f"compare={as_value(other_models)}")
        record, command = page.with_suffix(".txt"), "\n".join(arguments)
        is_of_these = page.is_file() and record.is_file() and read_text(record) == command
        if not is_of_these or record.stat().st_mtime < max(file.stat().st_mtime for file in checkpoints):
            page.unlink(missing_ok=True)
            output = f"output={as_value(str(page))}"
            self.commands.run("caption", "split=test", *arguments, output, *data_settings(self.config, ["root"]))
            record.write_text(command)


def _hold(scoring: ScoringPlan) -> TextIO | None:
    """Lock the models for this worker and return the lock file; if another worker trains or scores them, print that and
    return None."""
    lock = lock_file(scoring.folder.with_suffix(LOCK))
    if lock is None:
        print(f"{scoring.title} is being processed by another worker")
    return lock
