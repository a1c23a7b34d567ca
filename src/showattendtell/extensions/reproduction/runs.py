"""The runs of a table: the training settings of each, and its progress."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from showattendtell.config.command_line import as_value
from showattendtell.config.compose import (
    compose,
    find_differences,
    plain_settings,
    to_plain,
)
from showattendtell.config.entry_point import HYDRA, config_dirs
from showattendtell.config.trust import read_settings
from showattendtell.config.validation import raise_errors
from showattendtell.data.parsing import read_text
from showattendtell.errors import UserError, did_you_mean, listed
from showattendtell.extensions.reproduction.tables import (
    PaperTableConfig,
    ScoringPlan,
    check_table,
    sha256_of,
    with_runs_before,
)
from showattendtell.runtime.files import BEST, LAST, PREVIOUS, read_times
from showattendtell.settings import may_differ

BEGINNING = "init_from.sha256"
"""File with the SHA-256 of the weights that a second stage was initialized from, or that a mean was averaged from."""

OTHER_RUNS = ("init_from", "distillation.teacher", "distillation.captions")
"""Settings with paths to the weights of other runs of the table, whose folder may be moved."""

OWN = {
    "seed": ", and choose seeds by seeds=[1]",
    "init_from": "",
    "distillation.teacher": "",
    "distillation.captions": "",
    "resume": "",
    "stages": "",
}
"""Settings of training that each run of a table sets itself, and what to do instead."""


class TableRun(NamedTuple):
    """A recipe with a seed.

    Attributes:
        arguments: arguments of `train`, without those that set the output folder.
        config: the training configuration that they compose.
        scoring: the required test results of its best checkpoint.
        dependencies: the runs whose best weights initialize a second stage, are averaged, or are teachers.
        is_mean: whether the run averages those weights instead of training.
        writers: the ensemble that captions the training images, if the run learns from its captions.
    """

    recipe: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    config: DictConfig
    scoring: ScoringPlan
    dependencies: "tuple[TableRun, ...]" = ()
    is_mean: bool = False
    writers: ScoringPlan | None = None

    @property
    def title(self) -> str:
        return self.scoring.title

    @property
    def can_begin(self) -> bool:
        return all(run.is_finished for run in self.dependencies)

    @property
    def is_begun(self) -> bool:
        return any((self.folder / name).is_file() for name in (LAST, PREVIOUS))

    @property
    def is_trained(self) -> bool:
        """Whether all epochs are done; with early stopping and for a mean, only its results show that."""
        return self.scoring.was_scored or (self.num_epochs is not None and self.epochs >= self.num_epochs)

    @property
    def is_finished(self) -> bool:
        return self.scoring.is_finished

    @property
    def minutes_before(self) -> float:
        """Training minutes of all stages before it, each counted once."""
        return sum(sum(read_times(folder)) for folder in dict.fromkeys(self._folders_before())) / 60

    def _folders_before(self) -> Iterator[Path]:
        for run in self.dependencies:
            yield from (*run._folders_before(), run.folder)

    @property
    def epochs(self) -> int:
        """Number of finished epochs."""
        return len(read_times(self.folder))

    @property
    def num_epochs(self) -> int | None:
        """Maximum number of epochs; None without a limit."""
        max_epochs = self.config.trainer.get("max_epochs")
        return max_epochs if max_epochs and max_epochs > 0 else None


def make_runs(table: PaperTableConfig, config: DictConfig, folder: Path) -> list[TableRun]:
    """Return the runs that a command asks for, recipe by recipe.

    A second stage comes after the runs that it depends on, which are added if necessary.

    Raises:
        UserError: the table names what does not exist, `train` does not accept a setting, or a folder holds a run with
            other settings.
    """
    check_table(table)
    requested = table.recipes if config.recipes is None else config.recipes
    names = [requested] if isinstance(requested, str) else list(requested)
    for name in names:
        if name not in table.recipes:
            raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")
    runs = _make_runs(table, config, folder, with_runs_before(table, names, config.seeds or table.seeds))
    check_settings(runs)
    return runs


def finished_runs(table: PaperTableConfig, config: DictConfig, folder: Path) -> list[TableRun]:
    """Return all finished runs of the table with these settings, including those that the command does not ask for."""
    return [run for run in _all_runs(table, config, folder) if run.is_finished and not find_other_settings(run)]


def runs_with_other_settings(table: PaperTableConfig, config: DictConfig, folder: Path) -> list[str]:
    """Return a sentence for each existing run of the table with other settings."""
    return [error for run in _all_runs(table, config, folder) for error in find_other_settings(run)]


def _all_runs(table: PaperTableConfig, config: DictConfig, folder: Path) -> list[TableRun]:
    """Return the runs of all recipes that accept the settings; raise `UserError` if none does."""
    seeds = list(dict.fromkeys([*table.seeds, *(config.seeds or [])]))
    runs: list[TableRun] = []
    errors = []
    for recipe in table.recipes:
        try:
            recipe_runs = _make_runs(table, config, folder, with_runs_before(table, [recipe], seeds))
        except UserError as error:
            errors.append(str(error))
        else:
            runs += [run for run in recipe_runs if run.recipe == recipe]
    if len(errors) == len(table.recipes):
        raise_errors(errors[:1])
    return runs


def _make_runs(
    table: PaperTableConfig, config: DictConfig, folder: Path, seeds: Mapping[str, Sequence[int]]
) -> list[TableRun]:
    common = [*config_dirs(), *given_settings(config), *data_settings(config, ["root"])]
    boxed = bool(config.dataset.entities or config.dataset.instances)
    runs: dict[tuple[str, int], TableRun] = {}
    for name in seeds:
        recipe = table.recipes[name]
        source = recipe
        while source.average_of:  # a mean has the settings of its first part, as in its checkpoint
            source = table.recipes[source.average_of[0]]
        arguments = (*source.settings, *common)
        settings = compose("train", arguments)
        for seed in seeds[name]:
            at = folder / name / str(seed)
            scoring = ScoringPlan(f"{name}, seed {seed}", at, (at / BEST,), tuple(table.decodings), boxed)
            dependencies = tuple(runs[needed] for needed in table.runs_before(name, seed))
            run_settings: dict[str, Any] = {"seed": seed}
            if recipe.init_from:
                run_settings["init_from"] = str(folder / recipe.init_from / str(seed) / BEST)
            if recipe.teachers:
                teachers = [str(folder / teacher / str(seed) / BEST) for teacher in recipe.teachers]
                run_settings["distillation.teacher"] = teachers
            writers = None
            if recipe.captions_of:
                models = [folder / other / str(each) / BEST for other in recipe.captions_of for each in table.seeds]
                writers = ScoringPlan(f"captions for {name}", folder / name, tuple(models), (), boxed=False)
                run_settings["distillation.captions"] = str(captions_file(writers))
            run_config = copy.deepcopy(settings)
            run_arguments = list(arguments)
            for key, value in run_settings.items():
                OmegaConf.update(run_config, key, value)
                run_arguments.append(f"{key}={as_value(value if isinstance(value, list) else str(value))}")
            is_mean = bool(recipe.average_of)
            runs[name, seed] = TableRun(
                name, seed, at, tuple(run_arguments), run_config, scoring, dependencies, is_mean, writers
            )
    return list(runs.values())


def captions_file(writers: ScoringPlan) -> Path:
    """Return the file with the captions of an ensemble for the training images."""
    return writers.folder / "captions-train.json"


def check_settings(runs: Iterable[TableRun]) -> None:
    """Raise `UserError` if a run's folder holds one with other settings or with other initial weights."""
    raise_errors([error for run in runs for error in find_other_settings(run)][:1])


def make_ensembles(table: PaperTableConfig, runs: Sequence[TableRun], folder: Path) -> dict[str, ScoringPlan]:
    """Return the table's ensembles by name, if each recipe has a run and there are several runs. Ensembles have no
    attention scores, since they have no common attention maps."""
    ensembles = {}
    for name in table.ensembles:
        members = [[run for run in runs if run.recipe == recipe] for recipe in table.members(name)]
        ensemble_runs = [run for member_runs in members for run in member_runs]
        if all(members) and len(ensemble_runs) > 1:
            seeds = "_".join("-".join(str(run.seed) for run in member_runs) for member_runs in members)
            models = tuple(run.folder / BEST for run in ensemble_runs)
            ensembles[name] = ensemble_runs[0].scoring._replace(
                title=name, folder=folder / name / seeds, models=models, boxed=False
            )
    return ensembles


def given_settings(config: DictConfig) -> list[str]:
    """Return the settings of all runs; raise `UserError` for one that each run sets itself."""
    settings = [config.settings] if isinstance(config.settings, str) else list(config.settings)
    for setting in settings:
        name = setting.partition("=")[0].lstrip("+")
        if name in OWN or name.startswith("hydra."):
            raise UserError(f"settings=[{setting}]: {name} is set by the table; leave it out{OWN.get(name, '')}")
    return settings


def budget(config: DictConfig) -> list[str]:
    """Return the settings of all runs that make them differ from the recipes."""
    return [setting for setting in given_settings(config) if not may_differ(setting.partition("=")[0])]


def data_settings(config: DictConfig, names: Sequence[str]) -> list[str]:
    """Return those of the command's `dataset` settings that are given, as arguments."""
    set_names = [name for name in names if config.dataset[name] is not None]
    return [f"dataset.{name}={as_value(config.dataset[name])}" for name in set_names]


def find_other_settings(run: TableRun) -> list[str]:
    """Return a sentence if the folder of the run holds one that was started with other settings."""
    if not (run.is_begun or run.scoring.results):
        return []
    if run.is_mean and (errors := [error for part in run.dependencies for error in find_other_settings(part)]):
        return errors
    file = run.folder / HYDRA / "config.yaml"
    if file.is_file():
        stored = plain_settings(read_settings(file))
        if run.dependencies:  # their folder may have been moved
            paths = {name: OmegaConf.select(run.config, name) for name in OTHER_RUNS}
            stored |= {name: path for name, path in paths.items() if path}
        if differences := find_differences(to_plain(run.config, resolve=False), stored):
            differing = listed(differences, shown=5)
            return [f"{run.folder} has other settings: {differing}; give the same, or another folder as output=DIR"]
    if changed := _changed_dependencies(run):
        return [f"{run.folder} was trained from an earlier {changed[0].title}; delete it to train it again"]
    return []


def _changed_dependencies(run: TableRun) -> list[TableRun]:
    """Return the runs before it whose weights have changed since. Without a record of the weights, or if a checkpoint
    was deleted, no change is assumed."""
    marker = run.folder / BEGINNING
    hashes = read_text(marker).split() if marker.is_file() else None
    if hashes is None or len(hashes) != len(run.dependencies):
        return [] if hashes is None else list(run.dependencies)
    best = [dependency.folder / BEST for dependency in run.dependencies]
    records = zip(run.dependencies, best, hashes, strict=True)
    return [dependency for dependency, file, sha256 in records if file.is_file() and sha256_of(file) != sha256]


def note_beginning(run: TableRun) -> None:
    """Record the weights that a second stage or a mean starts from; raise `UserError` if they are missing."""
    missing = [dependency for dependency in run.dependencies if not (dependency.folder / BEST).is_file()]
    if missing:
        raise UserError(
            f"{missing[0].folder} has no {BEST} any more, but {run.title} needs it; delete it to train it again"
        )
    if run.dependencies:
        run.folder.mkdir(parents=True, exist_ok=True)
        hashes = [sha256_of(dependency.folder / BEST) for dependency in run.dependencies]
        (run.folder / BEGINNING).write_text("".join(f"{sha256}\n" for sha256 in hashes))


def expected_seconds(run: TableRun, runs: Sequence[TableRun], minutes: float | None) -> float | None:
    """Estimate the remaining training time from the run's own epochs, from runs of the same recipe, or from the table's
    `minutes`; None if there is no estimate."""
    if run.is_finished or run.is_trained or run.is_mean:
        return 0.0
    seconds = read_times(run.folder)
    if seconds and run.num_epochs:
        return mean(seconds) * max(0, run.num_epochs - len(seconds))
    durations = [sum(read_times(other.folder)) for other in runs if other.recipe == run.recipe and other.is_finished]
    return mean(durations) if durations else None if minutes is None else 60 * minutes
