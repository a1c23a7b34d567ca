"""Tables of recipes, and their runs: the files of each, its progress, and its test results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

from omegaconf import DictConfig
from pydantic import Field

from showattendtell.config.compose import compose, find_differences, plain_settings, to_plain
from showattendtell.config.entry_point import HYDRA
from showattendtell.config.trust import read_settings
from showattendtell.errors import UserError, did_you_mean, listed
from showattendtell.runtime.files import BEST, read_times
from showattendtell.settings import PositiveFloat, PositiveInt, Seed, Text
from showattendtell.visualization.result_files import Result, read_result

BOXED = "pointing_game"
"""The figure that a result has if the data set has ground-truth boxes."""

INPUTS = ("init_from", "distillation.teacher", "distillation.captions", "resume", "stages")
"""Settings of training that follow from the recipe, besides its `settings`."""


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
        return all(map(self.result, self.decodings))

    @property
    def was_scored(self) -> bool:
        """Whether there is a result with any decoding: then training was complete."""
        return any(self.folder.glob("results-test-*.json"))

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
        """Return the result of the present weights; None if there is none, or if it lacks scores of attention."""
        result = result_of(self.result_file(decoding), self.models)
        return result if result and (not self.boxed or BOXED in result.figures) else None

    def find_other_settings(self) -> str | None:
        """Return a sentence if the folder of the run, or of a part of an average, holds a run with other settings."""
        if self.config is None:
            return next(filter(None, (run.find_other_settings() for run in self.dependencies)), None)
        file = self.folder / HYDRA / "config.yaml"
        if not file.is_file():
            return None
        own = {**to_plain(self.config, resolve=False), "seed": self.seed}
        differences = find_differences(own, plain_settings(read_settings(file)))
        # the paths of other runs follow from the recipe, and their folder may have been moved
        differences = [each for each in differences if not each.startswith(INPUTS)]
        if not differences:
            return None
        shown = listed(differences, shown=5)
        return f"{self.folder} has other settings: {shown}; give the same, or another folder as output=DIR"


def is_newer(file: Path, models: Sequence[Path]) -> bool:
    """Return whether a file exists and is not older than the checkpoints that it was made of. Deleted ones are assumed
    to be those."""
    times = [model.stat().st_mtime_ns for model in models if model.is_file()]
    return file.is_file() and file.stat().st_mtime_ns >= max(times, default=0)


def result_of(file: Path, models: Sequence[Path]) -> Result | None:
    """Return the result in a file if it is of these checkpoints, whose folder may have been moved, and not older."""
    result = _read(file, file.stat().st_mtime_ns) if is_newer(file, models) else None
    scored = [Path(model.checkpoint).parts[-3:] for model in result.models] if result else []
    return result if scored == [model.parts[-3:] for model in models] else None


@cache
def _read(file: Path, modified: int) -> Result:
    return read_result(file)


def check_table(table: PaperTableConfig, requested: Sequence[str]) -> None:
    """Raise `UserError` unless everything that the table or the command names exists, before hours are spent on it."""
    above: list[str] = []
    for name, recipe in table.recipes.items():
        for needed in (*recipe.needs, *recipe.captions_of):
            if needed not in above:
                known = did_you_mean(needed, above)
                raise UserError(f"table={table.name}: {name} needs {needed}, which is no recipe above it{known}")
        if bool(recipe.settings) == bool(recipe.average_of):
            raise UserError(f"table={table.name}: {name} needs either settings of train, or average_of")
        above.append(name)
    for name in (table.base, *table.pages, *chain.from_iterable(map(as_list, table.ensembles.values())), *requested):
        if name not in table.recipes:
            raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")
    if table.decoding not in table.decodings:
        raise UserError(
            f"table.decoding={table.decoding}, with which recipes are compared, is not among table.decodings="
            f"[{','.join(map(str, table.decodings))}]"
        )
    for decoding in table.decodings:
        compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])


def as_list(names: str | Sequence[str]) -> list[str]:
    """Return a setting that is one text or several as a list."""
    return [names] if isinstance(names, str) else list(names)


def title_of(decoding: int | str) -> str:
    """Return the title of a table's decoding."""
    return f"beam {decoding}" if isinstance(decoding, int) else decoding


def setting_of(decoding: int | str) -> str:
    """Return the command-line setting of a table's decoding."""
    return f"decoding.beam_size={decoding}" if isinstance(decoding, int) else f"decoding={decoding}"
