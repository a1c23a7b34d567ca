"""Tables of recipes, and their runs: the training settings of each, its progress, and its test results."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from omegaconf import DictConfig
from pydantic import Field

from showattendtell.config.command_line import as_value, quoted
from showattendtell.config.compose import compose, find_differences, plain_settings, to_plain
from showattendtell.config.entry_point import HYDRA, config_dirs
from showattendtell.config.trust import read_settings
from showattendtell.errors import UserError, did_you_mean, listed
from showattendtell.runtime.files import BEST, read_times, sha256
from showattendtell.settings import PositiveFloat, PositiveInt, Seed, Text, may_differ
from showattendtell.visualization.result_files import Result, read_result

BOXED = "pointing_game"
"""The figure that a result has if the data set has ground-truth boxes."""

CAPTIONS = "captions-train.json"
"""File in a recipe's folder with the captions of an ensemble for the training images."""

INPUTS = ("init_from", "distillation.teacher", "distillation.captions", "resume", "stages")
SET_BY_TABLE = ("seed", *INPUTS)
"""Settings of training that each run of a table sets itself."""


@dataclass
class ReproduceConfig:
    """Settings of `reproduce`.

    Attributes:
        table: the table to reproduce.
        recipes: the recipes of the table to run; by default all. [] runs none, for the table of finished runs.
        seeds: the seeds of the runs; the table's own by default.
        settings: arguments of train for all runs, as [trainer.max_epochs=1,cache=DIR].
        plan: only print which runs are left to do.
        output: the folder of the runs and the table; runs/paper-FOLDER of the table by default.
    """

    table: Text
    recipes: Text | Sequence[Text] | None
    seeds: Annotated[Sequence[Seed], Field(min_length=1)] | None
    settings: Text | Sequence[Text]
    plan: bool
    output: Text | None


class RecipeConfig(NamedTuple):
    """A row of a table: a training, or the weight average of others. It may need recipes above it.

    Attributes:
        settings: arguments of train, without the seed.
        minutes: approximate training time with one seed on one core; null if it was not measured.
        init_from: the recipe whose best weights of the same seed initialize this training, if it is a second stage.
        average_of: instead of settings, the recipes whose best weights of the same seed are averaged.
        teachers: the recipes whose best models of the same seed form the ensemble that this training learns from.
        captions_of: the recipes whose best models of all seeds of the table form the ensemble that captions the
            training images; this training learns from these captions.
    """

    settings: Sequence[Text] = ()
    minutes: PositiveFloat | None = None
    init_from: Text | None = None
    average_of: Sequence[Text] = ()
    teachers: Sequence[Text] = ()
    captions_of: Sequence[Text] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The recipes that have to be trained before this one with its seed."""
        return (*([self.init_from] if self.init_from else []), *self.average_of, *self.teachers)


class PaperTableConfig(NamedTuple):
    """Recipes that are rows of one table.

    Attributes:
        name: the name of the table and of its files.
        folder: folder of the runs, runs/paper-FOLDER; tables may share it, and recipes of the same name are trained
            once.
        recipes: the recipes by name, in the order of the rows.
        base: the recipe that the others are compared with.
        pages: the recipes that are shown side by side on the page of photographs.
        seeds: the seeds of each recipe.
        decodings: how the test images are captioned: a number is a beam size, a word an option of the group decoding.
        decoding: the one of decodings with which recipes are compared.
        ensembles: rows for ensembles of all seeds of a recipe, or of several recipes, by name.
    """

    name: Text
    folder: Text
    recipes: Mapping[str, RecipeConfig]
    base: Text
    pages: Sequence[Text]
    seeds: Annotated[Sequence[Seed], Field(min_length=1)] = (1, 2, 3)
    decodings: Annotated[Sequence[PositiveInt | Text], Field(min_length=1)] = (1, 3, 5, "consensus")
    decoding: PositiveInt | Text = 3
    ensembles: Mapping[str, Text | Sequence[Text]] = MappingProxyType({})


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
    arguments: Sequence[str] = ()
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

    def runs_before(self) -> "set[TableRun]":
        """Return the runs of all stages before it."""
        return {*self.dependencies}.union(*(run.runs_before() for run in self.dependencies))

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
    for checkpoint, model in zip(models, result.models, strict=True):
        if checkpoint.is_file() and _hash(checkpoint, checkpoint.stat().st_mtime_ns) != model.sha256:
            return None
    return result


@cache
def _hash(checkpoint: Path, modified: int) -> str:
    return sha256(checkpoint)


@cache
def _read(file: Path, modified: int) -> Result:
    return read_result(file)


@cache
def _decoding_settings(decoding: int | str) -> dict[str, Any]:
    """Return the present settings of a table's decoding as `evaluate` stores them in a result."""
    from showattendtell.config.instantiate import build  # imports torch for the decoding

    config = compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])
    settings: dict[str, Any] = json.loads(json.dumps(build(config.decoding).describe()))
    return settings


def check_table(table: PaperTableConfig) -> None:
    """Raise `UserError` unless everything that the table names exists, before hours are spent on it."""
    above: list[str] = []
    for name, recipe in table.recipes.items():
        for needed in (*recipe.needs, *recipe.captions_of):
            if needed not in above:
                known = did_you_mean(needed, above)
                raise UserError(f"table={table.name}: {name} needs {needed}, which is no recipe above it{known}")
        if bool(recipe.settings) == bool(recipe.average_of):
            raise UserError(f"table={table.name}: {name} needs either settings of train, or average_of")
        above.append(name)
    members = [name for recipes in table.ensembles.values() for name in as_list(recipes)]
    check_recipes(table, [table.base, *table.pages, *members])
    if table.decoding not in table.decodings:
        raise UserError(
            f"table.decoding={table.decoding}, with which recipes are compared, is not among table.decodings="
            f"[{','.join(map(str, table.decodings))}]"
        )
    for decoding in table.decodings:
        compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])


def check_recipes(table: PaperTableConfig, names: Sequence[str]) -> None:
    """Raise `UserError` unless the table has these recipes."""
    for name in names:
        if name not in table.recipes:
            raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")


def make_runs(table: PaperTableConfig, config: DictConfig, folder: Path) -> list[TableRun]:
    """Return the runs of a table with its seeds and those of the command, each after those that it depends on.

    Recipes that do not accept the settings are left out, unless the command asks for them.

    Raises:
        UserError: the table names what does not exist, or `train` does not accept a setting.
    """
    check_table(table)
    required = [table.base, *requested_recipes(table, config)]
    common = [*config_dirs(), *given_settings(config), *data_settings(config, ["root"])]
    boxed = bool(config.dataset.entities or config.dataset.instances)
    runs: dict[tuple[str, int], TableRun] = {}
    left_out = set[str]()
    for name, recipe in table.recipes.items():
        try:
            composed = compose("train", [*recipe.settings, *common]) if recipe.settings else None
        except UserError:
            if name in required:
                raise
            left_out.add(name)
        if left_out & {name, *recipe.needs, *recipe.captions_of}:
            left_out.add(name)
            continue
        writers = [runs[writer, seed] for writer in recipe.captions_of for seed in table.seeds]
        for seed in dict.fromkeys([*table.seeds, *(config.seeds or ())]):
            parts = {part: runs[part, seed] for part in recipe.needs}
            inputs = [f"seed={seed}", *_inputs(recipe, parts, folder / name)]
            runs[name, seed] = TableRun(
                name,
                seed,
                folder / name / str(seed),
                table.decodings,
                boxed,
                list(dict.fromkeys([*parts.values(), *writers])),
                (*recipe.settings, *common, *inputs) if composed else (),
                composed,
                [run.best for run in writers],
            )
    return list(runs.values())


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
    check_recipes(table, names)
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


def find_other_settings(run: TableRun) -> str | None:
    """Return a sentence if the folder of the run, or of a part of an average, holds a run with other settings."""
    file = run.folder / HYDRA / "config.yaml"
    if run.config is None:
        return next(filter(None, map(find_other_settings, run.dependencies)), None)
    if not file.is_file():
        return None
    own = {**to_plain(run.config, resolve=False), "seed": run.seed}
    differences = find_differences(own, plain_settings(read_settings(file)))
    # the paths of other runs follow from the recipe, and their folder may have been moved
    differences = [each for each in differences if not each.startswith(INPUTS)]
    if not differences:
        return None
    shown = listed(differences, shown=5)
    return f"{run.folder} has other settings: {shown}; give the same, or another folder as output=DIR"


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
    return [setting for setting in as_list(config.settings) if not may_differ(setting.partition("=")[0])]


def data_settings(config: DictConfig, names: Sequence[str]) -> list[str]:
    """Return those of the command's `dataset` settings that are given, as arguments."""
    return [f"dataset.{name}={as_value(config.dataset[name])}" for name in names if config.dataset[name] is not None]


def as_list(names: str | Sequence[str]) -> list[str]:
    """Return a setting that is one text or several as a list."""
    return [names] if isinstance(names, str) else list(names)


def quote_settings(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each setting in `settings=[a=1,b=[2,3]]` in quotes, which Hydra requires."""
    result = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "settings" and "=" in argument and value != "null":
            inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
            settings = re.split(r",\s*(?=[\"']?[+~]*[\w./]+=)", inner) if inner else []  # not within lists
            quoted_settings = (setting if setting[0] in "\"'" else quoted(setting) for setting in settings)
            argument = f"settings=[{','.join(quoted_settings)}]"
        result.append(argument)
    return result


def title_of(decoding: int | str) -> str:
    """Return the title of a table's decoding."""
    return f"beam {decoding}" if isinstance(decoding, int) else decoding


def setting_of(decoding: int | str) -> str:
    """Return the command-line setting of a table's decoding."""
    return f"decoding.beam_size={decoding}" if isinstance(decoding, int) else f"decoding={decoding}"
