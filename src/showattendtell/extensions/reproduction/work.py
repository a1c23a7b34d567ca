"""Runs the commands of this package one after the other, as a user would."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.command_line import as_value
from showattendtell.errors import UserError, listed
from showattendtell.extensions.reproduction.outcome import make_table, write
from showattendtell.extensions.reproduction.tables import (
    CAPTIONS,
    PaperTableConfig,
    TableRun,
    as_list,
    changed_settings,
    current_result,
    data_settings,
    find_other_settings,
    make_ensembles,
    select_runs,
    setting_of,
)
from showattendtell.runtime.files import LOCK, duration, exists_error, file_lock, lock_file
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
        line = f"showattendtell {shlex.join([command, *settings])}"
        print(f"\n$ {line}", flush=True)
        status = self.status_of(command, *settings)
        if self.received_signal:
            sys.exit(128 + self.received_signal)
        if status:
            raise UserError(f"{command} ended with status {status}; its output is above, after $ {line}")


def print_plan(table: PaperTableConfig, runs: Sequence[TableRun], config: DictConfig) -> None:
    """Print the progress and the remaining training time of each run by the table's `minutes`, and the total."""
    total = 0.0
    for run in runs:
        spent = sum(run.seconds)
        state = "finished" if run.is_finished else "to do"
        if spent:
            state += f", {len(run.seconds)} epochs in {duration(spent)}"
        if run.config and not (run.is_finished or run.was_scored):
            minutes = None if changed_settings(config) else table.recipes[run.recipe].minutes
            left = max(0.0, 60 * minutes - spent) if minutes else 0.0
            state += f", training left: {duration(left) if minutes else '?'}"
            total += left
        print(f"{run.title}: {state}")
    if all(run.is_finished for run in runs):
        print("nothing to train: all runs are finished")
    else:
        print(f"training left: {duration(total)}; storing grids and scoring come on top")


class Reproduction:
    """The commands that train and score the runs of a table, and the table itself.

    Args:
        all_runs: the runs of the table.
        folder: of the runs and the table.
        config: of the command.
    """

    def __init__(
        self,
        table: PaperTableConfig,
        all_runs: Sequence[TableRun],
        folder: Path,
        config: DictConfig,
        commands: CommandRunner,
    ):
        self.table, self.all_runs, self.folder, self.config, self.commands = table, all_runs, folder, config, commands
        self.runs = select_runs(all_runs, table, config)
        self.errors: list[str] = []

    def reproduce(self) -> None:
        """Run what is neither finished nor running in another worker, and write the table of the finished runs.

        Raises:
            UserError: at the end, with a sentence for each run that failed.
        """
        lock, is_new = self.folder / LOCK, not any(run.folder.exists() for run in self.runs)
        if is_new and not lock.exists() and self.folder.is_dir() and any(self.folder.iterdir()):
            raise exists_error(self.folder)
        with self.commands:
            if self.runs:
                if is_new:
                    with file_lock(lock):  # an error in the data or the encoder would affect every run
                        self.commands.run("prepare", *self.runs[0].arguments)
                self.carry_out(self.runs)
                self.carry_out(self.ensembles())
            with file_lock(lock):
                self._write_outcome()
        if self.errors:
            raise UserError("\n  ".join([f"{len(self.errors)} of the table's rows failed:", *self.errors]))

    def carry_out(self, runs: Sequence[TableRun]) -> None:
        """Train and score the unfinished ones of these runs.

        Runs of another worker are skipped, and so are second stages that depend on them, unless those finish in the
        meantime.
        """
        left, num_before = list(runs), None
        while len(left) != num_before:
            num_before = len(left)
            left = [run for run in left if not self._take(run)]

    def _take(self, run: TableRun) -> bool:
        """Carry out a run, or record its error; return False if another worker has it or if it cannot start yet."""
        lock = lock_file(run.folder.with_suffix(LOCK))
        if lock is None:
            print(f"{run.title} is being processed by another worker")
            return False
        with lock, self._recording_errors(run.title):
            if not all(part.is_finished for part in run.dependencies):
                return False
            if not (run.is_finished or run.was_scored):
                self._train(run)
            self._score(run)
        return True

    @contextmanager
    def _recording_errors(self, title: str) -> Iterator[None]:
        """Record a `UserError` instead of raising it."""
        try:
            yield
        except UserError as error:
            self.errors.append(f"{title}: {error}")

    def _train(self, run: TableRun) -> None:
        """Train or average; complete training ends at once when resumed. Of an ensemble there is nothing to train."""
        if run.seed is None:
            return
        if run.writers:
            self._caption_training_images(run)
        if run.arguments:
            self.commands.run("train", *run.arguments, f"hydra.run.dir={as_value(str(run.folder))}", "resume=true")
        elif not run.best.is_file():
            parts = as_value([str(part.best) for part in run.dependencies])
            self.commands.run("average", f"checkpoint={parts}", f"output={as_value(str(run.best))}")

    def _caption_training_images(self, run: TableRun) -> None:
        """Write the captions that a recipe learns from, unless there are captions of these models."""
        file = run.folder.parent / CAPTIONS
        with file_lock(file.with_suffix(LOCK)):
            if not current_result(file, run.writers):
                settings = ["decoding.beam_size=5", "decoding.min_length=1", "decoding.allow_unk=false"]
                self._evaluate(run.writers, ["split=train", "metrics=[bleu]", *settings], file, ["root"])

    def _score(self, run: TableRun) -> None:
        """Compute the missing test results."""
        for decoding in run.decodings:
            if not run.result(decoding):
                file = run.result_file(decoding)
                self._evaluate(run.models, [setting_of(decoding)], file, ["root", "entities", "instances"])
                if not run.result(decoding):
                    raise UserError(f"{file} has no scores of attention; leave dataset.entities and .instances out")

    def _evaluate(self, models: Sequence[Path], settings: Sequence[str], output: Path, names: Sequence[str]) -> None:
        """Run evaluate with a model or an ensemble, and with the settings `names` of the data set. An earlier result,
        which is of other weights or settings, is removed."""
        output.unlink(missing_ok=True)
        paths = [str(file) for file in models]
        self.commands.run(
            "evaluate",
            f"checkpoint={as_value(paths if len(paths) > 1 else paths[0])}",
            *settings,
            f"output={as_value(str(output))}",
            *data_settings(self.config, names),
            *(setting for setting in as_list(self.config.settings) if setting.startswith("cache=")),
        )

    def finished_runs(self) -> list[TableRun]:
        """Return all finished runs of the table with these settings, also those that the command does not ask for."""
        return [run for run in self.all_runs if run.is_finished and not find_other_settings(run)]

    def ensembles(self) -> list[TableRun]:
        """Return the ensembles of finished runs; an ensemble waits for all requested runs of its recipes."""
        incomplete = {run.recipe for run in self.runs if not run.is_finished}
        finished = [run for run in self.finished_runs() if run.recipe not in incomplete]
        return make_ensembles(self.table, finished, self.folder)

    def _write_outcome(self) -> None:
        """Write the page of photographs and the table of the finished runs."""
        ensembles, page = self.ensembles(), self.folder / f"{self.table.name}-photographs.html"
        rows = [*self.finished_runs(), *(run for run in ensembles if run.is_finished)]
        if self.runs:
            with self._recording_errors("photographs"):
                self._show_photographs(rows, page)
        with self._recording_errors("the table"):
            overview = make_table(self.table, rows, self._notes(rows, ensembles))
            if overview:
                photographs = page.name if page.is_file() else None
                write(overview._replace(photographs=photographs), self.folder, self.table.name)
            else:
                print(f"no run of table={self.table.name} is finished with these settings in {self.folder}")

    def _notes(self, rows: Sequence[TableRun], ensembles: Sequence[TableRun]) -> list[str]:
        """Return notes on changed settings, and on runs and ensembles without a row."""
        notes = []
        if changed := changed_settings(self.config):
            notes.append(f"all runs with other settings than their recipes: {' '.join(changed)}")
        if missing := [run for run in (*self.all_runs, *ensembles) if run not in rows]:
            folders = [str(run.folder.relative_to(self.folder)) for run in missing]
            notes.append(f"not finished, and not in the table: {listed(folders, shown=12)}")
        return notes

    def _show_photographs(self, finished: Sequence[TableRun], page: Path) -> None:
        """Write the page of photographs with the first seed of its recipes, if it is missing or older than these."""
        first = {run.recipe: run.best for run in reversed(finished) if run.best.is_file()}
        models = [first[recipe] for recipe in self.table.pages if recipe in first]
        if not models or len(models) < len(self.table.pages):
            return
        if page.is_file() and page.stat().st_mtime > max(file.stat().st_mtime for file in models):
            return
        page.unlink(missing_ok=True)
        model, *others = map(str, models)
        self.commands.run(
            "caption",
            "split=test",
            f"checkpoint={as_value(model)}",
            *([f"compare={as_value(others)}"] if others else []),
            f"number={NUM_PHOTOGRAPHS}",
            setting_of(self.table.decoding),
            f"output={as_value(str(page))}",
            *data_settings(self.config, ["root"]),
        )
