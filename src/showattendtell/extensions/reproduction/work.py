"""The runs of a table, and the commands that train and score them one after the other, as a user would."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.command_line import as_value
from showattendtell.config.compose import compose
from showattendtell.config.entry_point import config_dirs
from showattendtell.errors import UserError, listed
from showattendtell.extensions.reproduction.outcome import make_table, write
from showattendtell.extensions.reproduction.tables import (
    INPUTS,
    PaperTableConfig,
    RecipeConfig,
    TableRun,
    as_list,
    check_table,
    is_newer,
    result_of,
    setting_of,
)
from showattendtell.runtime.files import LOCK, duration, exists_error, file_lock, lock_file
from showattendtell.runtime.launched import Subcommands
from showattendtell.settings import may_differ

NUM_PHOTOGRAPHS = 20

CAPTIONS = "captions-train.json"
"""File in a recipe's folder with the captions of an ensemble for the training images."""


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


class Reproduction:
    """The runs of a table, the commands that train and score them, and the table of their results.

    `all_runs` are those of the table's seeds and the command's, each after those that it depends on; recipes that do
    not accept the settings are left out, unless the command asks for them. `runs` are those that the command asks for,
    and those that they depend on.

    Args:
        folder: of the runs and the table.
        config: of the command.

    Raises:
        UserError: the table names what does not exist, `train` does not accept a setting, or the folder of a run that
            the command asks for holds one with other settings.
    """

    def __init__(self, table: PaperTableConfig, config: DictConfig, folder: Path, commands: CommandRunner):
        self.table, self.config, self.folder, self.commands = table, config, folder, commands
        self.settings = as_list(config.settings)
        # those that make the runs differ from their recipes
        self.changed_settings = [line for line in self.settings if not may_differ(line.partition("=")[0])]
        self.errors: list[str] = []
        recipes = list(table.recipes) if config.recipes is None else as_list(config.recipes)
        check_table(table, recipes)
        for setting in self.settings:
            name = setting.partition("=")[0].lstrip("+")
            if name in ("seed", *INPUTS) or name.startswith("hydra."):
                advice = ", and choose seeds by seeds=[1]" if name == "seed" else ""
                raise UserError(f"settings=[{setting}]: {name} is set by the table; leave it out{advice}")
        self.all_runs = self._make_runs({table.base, *recipes})
        seeds = config.seeds or table.seeds
        requested = [run for run in self.all_runs if run.recipe in recipes and run.seed in seeds]
        needed = {*requested}.union(*(run.runs_before() for run in requested))
        self.runs = [run for run in self.all_runs if run in needed]
        for run in self.runs:
            if error := run.find_other_settings():
                raise UserError(error)

    def _make_runs(self, required: set[str]) -> list[TableRun]:
        common = [*config_dirs(), *self.settings, *self._data_settings("root")]
        is_boxed = bool(self.config.dataset.entities or self.config.dataset.instances)
        runs: dict[tuple[str, int], TableRun] = {}
        for name, recipe in self.table.recipes.items():
            try:
                config = compose("train", [*recipe.settings, *common]) if recipe.settings else None
            except UserError:
                if name in required:
                    raise
                continue
            if not {*recipe.needs, *recipe.captions_of} <= {run.recipe for run in runs.values()}:
                continue
            writers = [runs[writer, seed] for writer in recipe.captions_of for seed in self.table.seeds]
            for seed in dict.fromkeys([*self.table.seeds, *(self.config.seeds or ())]):
                parts = {part: runs[part, seed] for part in recipe.needs}
                inputs = self._inputs(name, recipe, parts)
                runs[name, seed] = TableRun(
                    name,
                    seed,
                    self.folder / name / str(seed),
                    self.table.decodings,
                    is_boxed,
                    list(dict.fromkeys([*parts.values(), *writers])),
                    (*recipe.settings, *common, f"seed={seed}", *inputs) if config else (),
                    config,
                    [run.best for run in writers],
                )
        return list(runs.values())

    def _inputs(self, name: str, recipe: RecipeConfig, parts: Mapping[str, TableRun]) -> Iterator[str]:
        """Yield the arguments of `train` that name the weights and captions of other runs."""
        if recipe.init_from:
            yield _path_setting("init_from", parts[recipe.init_from].best)
        if recipe.teachers:
            yield _path_setting("distillation.teacher", *(parts[teacher].best for teacher in recipe.teachers))
        if recipe.captions_of:
            yield _path_setting("distillation.captions", self.folder / name / CAPTIONS)

    def _data_settings(self, *names: str) -> list[str]:
        """Return those of the command's `dataset` settings that are given, as arguments."""
        given = {name: self.config.dataset[name] for name in names}
        return [f"dataset.{name}={as_value(value)}" for name, value in given.items() if value is not None]

    def print_plan(self) -> None:
        """Print the progress and the remaining training time of each run by the table's `minutes`, and the total."""
        total = 0.0
        for run in self.runs:
            state = "finished" if run.is_finished else "to do"
            if run.config and not run.was_scored:
                minutes = None if self.changed_settings else self.table.recipes[run.recipe].minutes
                left = max(0.0, 60 * (minutes or 0) - sum(run.seconds))
                state += f", {len(run.seconds)} epochs done, training left: {duration(left) if minutes else '?'}"
                total += left
            print(f"{run.title}: {state}")
        print(f"training left: {duration(total)}; storing grids and scoring come on top")

    def reproduce(self) -> None:
        """Run what is neither finished nor running in another worker, and write the table of the finished runs.

        Raises:
            UserError: the folder has other files; or at the end, with a sentence for each run that failed.
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

        Runs of another worker are skipped, and so are second stages that depend on them: that worker comes to these
        later.
        """
        for run in runs:
            lock = lock_file(run.folder.with_suffix(LOCK))
            if lock is None:
                print(f"{run.title} is being processed by another worker")
                continue
            with lock, self._recording_errors(run.title):
                if all(part.is_finished for part in run.dependencies):
                    if run.seed is not None and not run.was_scored:
                        self._train(run)
                    self._score(run)

    @contextmanager
    def _recording_errors(self, title: str) -> Iterator[None]:
        """Record a `UserError` instead of raising it."""
        try:
            yield
        except UserError as error:
            self.errors.append(f"{title}: {error}")

    def _train(self, run: TableRun) -> None:
        """Train or average; complete training ends at once when resumed."""
        if run.writers:
            captions = run.folder.parent / CAPTIONS
            with file_lock(captions.with_suffix(LOCK)):
                if not result_of(captions, run.writers):
                    settings = ["decoding.beam_size=5", "decoding.min_length=1", "decoding.allow_unk=false"]
                    settings += ["split=train", "metrics=[bleu]", *self._data_settings("root")]
                    self._evaluate(run.writers, captions, settings)
        if run.arguments:
            self.commands.run("train", *run.arguments, _path_setting("hydra.run.dir", run.folder), "resume=true")
        elif not run.best.is_file():
            parts = [part.best for part in run.dependencies]
            self.commands.run("average", _path_setting("checkpoint", *parts), _path_setting("output", run.best))

    def _score(self, run: TableRun) -> None:
        """Compute the missing test results."""
        for decoding in run.decodings:
            if not run.result(decoding):
                file = run.result_file(decoding)
                data = self._data_settings("root", "entities", "instances")
                self._evaluate(run.models, file, [setting_of(decoding), *data])
                if not run.result(decoding):
                    raise UserError(f"{file} has no scores of attention; leave dataset.entities and .instances out")

    def _evaluate(self, models: Sequence[Path], output: Path, settings: Sequence[str]) -> None:
        """Run evaluate with a model or an ensemble. An earlier result, of other weights or settings, is removed."""
        output.unlink(missing_ok=True)
        cache = [setting for setting in self.settings if setting.startswith("cache=")]
        places = [_path_setting("checkpoint", *models), _path_setting("output", output)]
        self.commands.run("evaluate", *places, *settings, *cache)

    def finished_runs(self) -> list[TableRun]:
        """Return all finished runs of the table with these settings, also those that the command does not ask for."""
        return [run for run in self.all_runs if run.is_finished and not run.find_other_settings()]

    def ensembles(self) -> list[TableRun]:
        """Return the table's ensembles of several finished runs, at least one of each recipe. An ensemble waits for all
        requested runs of its recipes. It has no attention scores, since its models have no common attention maps."""
        incomplete = {run.recipe for run in self.runs if not run.is_finished}
        finished = self.finished_runs()
        ensembles = []
        for name, recipes in self.table.ensembles.items():
            members = [[run for run in finished if run.recipe == recipe] for recipe in as_list(recipes)]
            parts = list(chain.from_iterable(members))
            if all(members) and len(parts) > 1 and incomplete.isdisjoint(run.recipe for run in parts):
                seeds = "_".join("-".join(str(run.seed) for run in runs) for runs in members)
                place = self.folder / name / seeds
                ensembles.append(TableRun(name, None, place, self.table.decodings, False, parts))
        return ensembles

    def _write_outcome(self) -> None:
        """Write the page of photographs and the table of the finished runs."""
        ensembles, page = self.ensembles(), self.folder / f"{self.table.name}-photographs.html"
        rows = [*self.finished_runs(), *(run for run in ensembles if run.is_finished)]
        if self.runs:
            with self._recording_errors("photographs"):
                self._show_photographs(rows, page)
        notes = []
        if self.changed_settings:
            notes.append(f"all runs with other settings than their recipes: {' '.join(self.changed_settings)}")
        if missing := [run for run in (*self.all_runs, *ensembles) if run not in rows]:
            folders = [str(run.folder.relative_to(self.folder)) for run in missing]
            notes.append(f"not finished, and not in the table: {listed(folders, shown=12)}")
        with self._recording_errors("the table"):
            overview = make_table(self.table, rows, notes)
            if overview:
                photographs = page.name if page.is_file() else None
                write(overview._replace(photographs=photographs), self.folder, self.table.name)
            else:
                print(f"no run of table={self.table.name} is finished with these settings in {self.folder}")

    def _show_photographs(self, finished: Sequence[TableRun], page: Path) -> None:
        """Write the page of photographs with the first seed of its recipes, if it is missing or older than these."""
        first = {run.recipe: run.best for run in reversed(finished) if run.best.is_file()}
        if not self.table.pages or not first.keys() >= {*self.table.pages}:
            return
        model, *others = models = [first[recipe] for recipe in self.table.pages]
        if is_newer(page, models):
            return
        page.unlink(missing_ok=True)
        settings = ["split=test", f"number={NUM_PHOTOGRAPHS}", setting_of(self.table.decoding)]
        settings += [_path_setting("checkpoint", model), _path_setting("output", page)]
        if others:
            settings.append(_path_setting("compare", *others))
        self.commands.run("caption", *settings, *self._data_settings("root"))


def _path_setting(name: str, *paths: Path) -> str:
    """Return a setting whose value is a path, or a list of several."""
    texts = list(map(str, paths))
    return f"{name}={as_value(texts if len(texts) > 1 else texts[0])}"
