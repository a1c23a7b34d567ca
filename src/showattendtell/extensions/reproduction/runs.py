"""The runs of a table: the training settings of each, its progress, and its test results."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import DictConfig

from showattendtell.config.command_line import as_value
from showattendtell.config.compose import compose, find_differences, plain_settings, to_plain
from showattendtell.config.entry_point import HYDRA, config_dirs
from showattendtell.config.trust import read_settings
from showattendtell.errors import UserError, listed
from showattendtell.extensions.reproduction.tables import (
    PaperTableConfig,
    RecipeConfig,
    as_list,
    check_recipe,
    check_table,
    setting_of,
    title_of,
)
from showattendtell.runtime.files import BEST, read_times, sha256
from showattendtell.settings import may_differ
from showattendtell.visualization.result_files import Result, read_result

BOXED = "pointing_game"
"""The figure that a result has if the data set has ground-truth boxes."""

CAPTIONS = "captions-train.json"
"""File in a recipe's folder with the captions of an ensemble for the training images."""

USED_WEIGHTS = "init_from.sha256"
"""File in a run's folder with the SHA-256 of the best weights of each run that it depends on, from when it started."""

SET_BY_TABLE = ("seed", "init_from", "distillation.teacher", "distillation.captions", "resume", "stages")
"""Settings of training that each run of a table sets itself."""


@dataclass(frozen=True, eq=False)
class TableRun:
    """A recipe with a seed, or an ensemble of such runs.

    Attributes:
        recipe: name of the recipe or the ensemble.
        seed: None for an ensemble.
        folder: folder of the results, and of the weights unless it is an ensemble.
        decodings: decodings of the test images, with one result for each.
        boxed: whether the results need attention scores, which use ground-truth boxes.
        dependencies: the runs whose best weights it starts from, averages, or learns from.
        arguments: arguments of `train`, without the output folder; none for averages and ensembles.
        config: the training configuration of the recipe.
        writers: the checkpoints whose ensemble captions the training images, if the run learns from its captions.
    """

    recipe: str
    seed: int | None
    folder: Path
    decodings: Sequence[int | str]
    boxed: bool
    dependencies: "Sequence[TableRun]" = ()
    arguments: tuple[str, ...] = ()
    config: DictConfig | None = None
    writers: Sequence[Path] = ()

    @property
    def title(self) -> str:
        return self.recipe if self.seed is None else f"{self.recipe}, seed {self.seed}"

    @property
    def best(self) -> Path:
        return self.folder / BEST

    @property
    def models(self) -> list[Path]:
        """The checkpoints that are scored."""
        return [run.best for run in self.dependencies] if self.seed is None else [self.best]

    @property
    def is_ready(self) -> bool:
        """Whether all runs before it are finished."""
        return all(run.is_finished for run in self.dependencies)

    @property
    def is_finished(self) -> bool:
        return all(self.result(decoding) for decoding in self.decodings)

    @property
    def was_scored(self) -> bool:
        """Whether there is a result of the present weights, with any decoding: then training was complete."""
        return any(current_result(file, self.models) for file in self.folder.glob("results-test-*.json"))

    @property
    def seconds(self) -> list[float]:
        """The seconds of each finished epoch."""
        return read_times(self.folder)

    @property
    def minutes_before(self) -> float:
        """Training minutes of all stages before it, each counted once."""
        return sum(sum(run.seconds) for run in dict.fromkeys(self._runs_before())) / 60

    def _runs_before(self) -> "Iterator[TableRun]":
        for run in self.dependencies:
            yield from (*run._runs_before(), run)

    def result_file(self, decoding: int | str) -> Path:
        return self.folder / f"results-test-{title_of(decoding).replace(' ', '')}.json"

    def result(self, decoding: int | str) -> Result | None:
        """Return the result of the present weights and decoding settings; None if there is none, or if it lacks scores
        of attention."""
        result = current_result(self.result_file(decoding), self.models)
        if not result or (self.boxed and BOXED not in result.figures):
            return None
        settings = _decoding_settings(decoding)
        # a setting that an older result lacks was added since, with a default that changes no caption
        is_same = all(settings.get(name) == value for name, value in result.decoding.items())
        return result if is_same else None


def current_result(file: Path, models: Sequence[Path]) -> Result | None:
    """Return a result if it belongs to these checkpoints. One that was deleted is assumed to be the one that was
    scored."""
    if not file.is_file():
        return None
    result = _read(file, file.stat().st_mtime_ns)
    if len(result.models) != len(models):
        return None
    for path, model in zip(models, result.models, strict=True):
        if path.is_file() and _hash_now(path) != model.sha256:
            return None
    return result


@cache
def _decoding_settings(decoding: int | str) -> dict[str, Any]:
    """Return the present settings of a table's decoding as `evaluate` stores them in a result."""
    from showattendtell.config.instantiate import build  # imports torch for the decoding

    config = compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])
    settings: dict[str, Any] = json.loads(json.dumps(build(config.decoding).describe()))
    return settings


@cache
def _read(file: Path, modified: int) -> Result:
    return read_result(file)


def _hash_now(checkpoint: Path) -> str:
    return _hash(checkpoint, checkpoint.stat().st_mtime_ns)


@cache
def _hash(checkpoint: Path, modified: int) -> str:
    return sha256(checkpoint)


def make_runs(table: PaperTableConfig, config: DictConfig, folder: Path) -> list[TableRun]:
    """Return the runs of a table with its seeds and those of the command, each after those that it depends on.

    Recipes that do not accept the settings are left out, unless the command asks for them.

    Raises:
        UserError: the table names what does not exist, or `train` does not accept a setting.
    """
    check_table(table)
    common = [*config_dirs(), *given_settings(config), *data_settings(config, ["root"])]
    boxed = bool(config.dataset.entities or config.dataset.instances)
    runs: dict[str, dict[int, TableRun]] = {}
    for name in _in_order(table):
        recipe, settings = table.recipes[name], None
        if recipe.settings:
            try:
                settings = compose("train", [*recipe.settings, *common])
            except UserError:
                if name == table.base or name in requested_recipes(table, config):
                    raise
                continue
        if not runs.keys() >= {*recipe.needs, *recipe.captions_of}:
            continue
        writers = [runs[writer][seed] for writer in recipe.captions_of for seed in table.seeds]
        runs[name] = {}
        for seed in dict.fromkeys([*table.seeds, *(config.seeds or ())]):
            parts = {part: runs[part][seed] for part in recipe.needs}
            arguments: tuple[str, ...] = ()
            if settings:
                arguments = (*recipe.settings, *common, f"seed={seed}", *_inputs(recipe, parts, folder / name))
            runs[name][seed] = TableRun(
                name,
                seed,
                folder / name / str(seed),
                table.decodings,
                boxed,
                list(dict.fromkeys([*parts.values(), *writers])),
                arguments,
                settings,
                [run.best for run in writers],
            )
    return [run for runs_by_seed in runs.values() for run in runs_by_seed.values()]


def _in_order(table: PaperTableConfig) -> list[str]:
    """Return the recipes, each after those that it depends on."""
    graph = {name: (*recipe.needs, *recipe.captions_of) for name, recipe in table.recipes.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " needs ".join(reversed(error.args[1]))
        raise UserError(f"table={table.name}: recipes depend on each other in a cycle: {cycle}") from None


def _inputs(recipe: RecipeConfig, parts: Mapping[str, TableRun], folder: Path) -> Iterator[str]:
    """Yield the arguments of `train` that name the weights and captions of other runs."""
    if recipe.init_from:
        yield f"init_from={as_value(str(parts[recipe.init_from].best))}"
    if recipe.teachers:
        yield f"distillation.teacher={as_value([str(parts[teacher].best) for teacher in recipe.teachers])}"
    if recipe.captions_of:
        yield f"distillation.captions={as_value(str(folder / CAPTIONS))}"


def requested_recipes(table: PaperTableConfig, config: DictConfig) -> list[str]:
    names = list(table.recipes) if config.recipes is None else as_list(config.recipes)
    for name in names:
        check_recipe(table, name)
    return names


def select_runs(runs: Sequence[TableRun], table: PaperTableConfig, config: DictConfig) -> list[TableRun]:
    """Return the runs that the command asks for, and those that they depend on.

    Raises:
        UserError: the folder of one holds a run with other settings.
    """
    names, seeds = requested_recipes(table, config), config.seeds or table.seeds
    needed = {run for run in runs if run.recipe in names and run.seed in seeds}
    for run in reversed(runs):
        if run in needed:
            needed.update(run.dependencies)
    selected = [run for run in runs if run in needed]
    for run in selected:
        if error := find_other_settings(run):
            raise UserError(error)
    return selected


def make_ensembles(table: PaperTableConfig, runs: Sequence[TableRun], folder: Path) -> list[TableRun]:
    """Return the table's ensembles, if each recipe has a run and there are several runs. Ensembles have no attention
    scores, since they have no common attention maps."""
    ensembles = []
    for name, recipes in table.ensembles.items():
        members = [[run for run in runs if run.recipe == recipe] for recipe in as_list(recipes)]
        parts = [run for member_runs in members for run in member_runs]
        if all(members) and len(parts) > 1:
            seeds = "_".join("-".join(str(run.seed) for run in member_runs) for member_runs in members)
            ensembles.append(TableRun(name, None, folder / name / seeds, table.decodings, False, parts))
    return ensembles


def given_settings(config: DictConfig) -> list[str]:
    """Return the settings of all runs; raise `UserError` for one that each run sets itself."""
    settings = as_list(config.settings)
    for setting in settings:
        name = setting.partition("=")[0].lstrip("+")
        if name in SET_BY_TABLE or name.startswith("hydra."):
            advice = ", and choose seeds by seeds=[1]" if name == "seed" else ""
            raise UserError(f"settings=[{setting}]: {name} is set by the table; leave it out{advice}")
    return settings


def changed_settings(config: DictConfig) -> list[str]:
    """Return the settings of all runs that make them differ from the recipes."""
    return [setting for setting in given_settings(config) if not may_differ(setting.partition("=")[0])]


def data_settings(config: DictConfig, names: Sequence[str]) -> list[str]:
    """Return those of the command's `dataset` settings that are given, as arguments."""
    set_names = [name for name in names if config.dataset[name] is not None]
    return [f"dataset.{name}={as_value(config.dataset[name])}" for name in set_names]


def find_other_settings(run: TableRun) -> str | None:
    """Return a sentence if the folder of the run, or of a part of an average, holds a run with other settings or one
    that started from other weights."""
    file = run.folder / HYDRA / "config.yaml"
    if run.config is None:
        if error := next(filter(None, map(find_other_settings, run.dependencies)), None):
            return error
    elif file.is_file():
        stored, own = plain_settings(read_settings(file)), to_plain(run.config, resolve=False)
        differences = find_differences({**own, "seed": run.seed}, stored)
        # the paths of other runs follow from the recipe, and their folder may have been moved
        differences = [each for each in differences if not each.startswith(SET_BY_TABLE[1:])]
        if differences:
            shown = listed(differences, shown=5)
            return f"{run.folder} has other settings: {shown}; give the same, or another folder as output=DIR"
    if changed := _changed_weights(run):
        return f"{run.folder} was made from earlier weights of {changed[0].title}; delete it to train it again"
    return None


def _changed_weights(run: TableRun) -> Sequence[TableRun]:
    """Return the runs whose weights have changed since this one started from them. Without a record, or if a checkpoint
    was deleted, no change is assumed."""
    record = run.folder / USED_WEIGHTS
    if not record.is_file():
        return ()
    hashes = record.read_text().split()
    if len(hashes) != len(run.dependencies):
        return run.dependencies
    pairs = zip(run.dependencies, hashes, strict=True)
    return [part for part, sha256 in pairs if part.best.is_file() and _hash_now(part.best) != sha256]


def record_weights(run: TableRun) -> None:
    """Record the weights that a run starts from, unless that is done; raise `UserError` if they are missing."""
    record = run.folder / USED_WEIGHTS
    if record.is_file() or not run.dependencies:
        return
    for part in run.dependencies:
        if not part.best.is_file():
            raise UserError(f"{part.best} is missing, but {run.title} needs it; delete {part.folder} to train it again")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("".join(f"{_hash_now(part.best)}\n" for part in run.dependencies))


def expected_seconds(run: TableRun, minutes: float | None) -> float | None:
    """Estimate the remaining training time from the run's own epochs, or from the table's `minutes`; None if there is
    no estimate."""
    if run.config is None or run.is_finished or run.was_scored:
        return 0.0
    max_epochs = run.config.trainer.get("max_epochs") or 0
    if run.seconds and max_epochs > 0:
        return mean(run.seconds) * max(0, max_epochs - len(run.seconds))
    return None if minutes is None else 60 * minutes
