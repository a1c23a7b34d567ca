"""Tables of recipes, the command-line settings of their rows, and which of their test results exist."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from showattendtell.config.command_line import quoted
from showattendtell.config.compose import compose
from showattendtell.data.parsing import parse_json, read_text
from showattendtell.errors import UserError, did_you_mean
from showattendtell.runtime.files import sha256
from showattendtell.settings import PositiveFloat, PositiveInt, Seed, Text

BOXED = "pointing_game"
"""The figure that a result has if the data set has ground-truth boxes."""


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
    """A row of a table: a training, or the weight average of others.

    Attributes:
        settings: arguments of train, without the seed.
        paper: the corresponding model in the paper's Table 1, if there is one.
        minutes: approximate training time with one seed on one core; null if it was not measured.
        init_from: the recipe whose best weights of the same seed initialize this training, if it is a second stage.
        average_of: instead of settings, the recipes whose best weights of the same seed are averaged.
        teachers: the recipes whose best models of the same seed form the ensemble that this training learns from.
        captions_of: the recipes whose best models of all seeds of the table form the ensemble that captions the
            training images; this training learns from these captions.
    """

    settings: Sequence[Text] = ()
    paper: Text | None = None
    minutes: PositiveFloat | None = None
    init_from: Text | None = None
    average_of: Sequence[Text] = ()
    teachers: Sequence[Text] = ()
    captions_of: Sequence[Text] = ()

    @property
    def needs_same_seed(self) -> tuple[str, ...]:
        """Return the recipes that have to be trained before this one with its seed."""
        return (*([self.init_from] if self.init_from else []), *self.average_of, *self.teachers)

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the recipes that have to be trained before this one."""
        return (*self.needs_same_seed, *self.captions_of)


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

    def runs_before(self, recipe: str, seed: int) -> list[tuple[str, int]]:
        """Return the recipes and seeds that have to be trained directly before a run."""
        config = self.recipes[recipe]
        writers = ((name, other_seed) for name in config.captions_of for other_seed in self.seeds)
        return list(dict.fromkeys([*((name, seed) for name in config.needs_same_seed), *writers]))

    def members(self, ensemble: str) -> list[str]:
        """Return the recipes whose models form an ensemble."""
        names = self.ensembles[ensemble]
        return [names] if isinstance(names, str) else list(names)


def check_table(table: PaperTableConfig) -> None:
    """Raise `UserError` unless everything that the table names exists, before hours are spent on it."""
    beginnings = (name for recipe in table.recipes.values() for name in recipe.needs)
    members = (recipe for name in table.ensembles for recipe in table.members(name))
    for name in [table.base, *table.pages, *members, *beginnings]:
        if name not in table.recipes:
            raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")
    for name, recipe in table.recipes.items():
        if len(recipe.average_of) == 1 or bool(recipe.settings) == bool(recipe.average_of):
            raise UserError(
                f"table={table.name}: {name} needs settings of train, or average_of with two recipes or more"
            )
        if recipe.average_of and (recipe.init_from or recipe.teachers or recipe.captions_of):
            raise UserError(
                f"table={table.name}: {name} is a weight average, and is not trained; leave init_from, teachers and "
                "captions_of out"
            )
    try:
        TopologicalSorter({name: recipe.needs for name, recipe in table.recipes.items()}).prepare()
    except CycleError as error:
        raise UserError(
            f"table={table.name}: recipes depend on each other in a cycle: {' needs '.join(reversed(error.args[1]))}"
        ) from None
    if table.decoding not in table.decodings:
        ways = ",".join(map(str, table.decodings))
        raise UserError(
            f"table.decoding={table.decoding}, with which recipes are compared, is not among table.decodings=[{ways}]"
        )
    for decoding in table.decodings:
        compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])


def with_runs_before(table: PaperTableConfig, names: Iterable[str], seeds: Sequence[int]) -> dict[str, list[int]]:
    """Return the recipes `names` and all that have to be trained before them, in that order, with their seeds."""
    found: dict[str, dict[int, None]] = {}

    def add(name: str, seed: int) -> None:
        for needed in table.runs_before(name, seed):
            add(*needed)
        found.setdefault(name, {})[seed] = None

    for name in names:
        for seed in seeds:
            add(name, seed)
    return {name: list(seeds_of) for name, seeds_of in found.items()}


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


class ScoringPlan(NamedTuple):
    """A model or an ensemble, and the test results that it needs.

    Attributes:
        title: name of the model or ensemble.
        folder: folder of the results.
        models: the checkpoints.
        decodings: decodings, with one result for each.
        boxed: whether the results need attention scores, which use ground-truth boxes.
    """

    title: str
    folder: Path
    models: tuple[Path, ...]
    decodings: tuple[int | str, ...]
    boxed: bool

    @property
    def is_finished(self) -> bool:
        return all(map(self.is_scored, self.decodings))

    @property
    def results(self) -> list[Path]:
        """Existing results, including those of other decodings and other weights."""
        return sorted(self.folder.glob("results-test-*.json"))

    @property
    def was_scored(self) -> bool:
        """Whether any result belongs to the present weights, which means that training was complete."""
        return all(model.is_file() for model in self.models) and any(map(self.is_of_these, self.results))

    def result_file(self, decoding: int | str) -> Path:
        return self.folder / f"results-test-{title_of(decoding).replace(' ', '')}.json"

    def is_scored(self, decoding: int | str) -> bool:
        """Whether there is a result of these models with the present settings of this decoding.

        A deleted checkpoint is assumed to be the one that was scored.
        """
        file = self.result_file(decoding)
        if not file.is_file() or not self.is_of_these(file):
            return False
        result = _read(file, _stamp(file))
        tokenizer, settings = _settings_of(decoding)
        used = result["decoding"]  # settings that it lacks are newer, and by default change no caption
        is_written_so = result["tokenizer"] == tokenizer and all(used[name] == settings.get(name) for name in used)
        return is_written_so and (not self.boxed or BOXED in result)

    def is_of_these(self, file: Path) -> bool:
        """Whether a result file belongs to the present weights. A deleted checkpoint is assumed to be the same."""
        scored = _read(file, _stamp(file))["checkpoint_sha256"]
        hashes = [scored] if isinstance(scored, str) else scored
        return len(hashes) == len(self.models) and all(
            not model.is_file() or sha256_of(model) == sha256 for model, sha256 in zip(self.models, hashes, strict=True)
        )


@cache
def _settings_of(decoding: int | str) -> tuple[str, dict[str, Any]]:
    """Return the present tokenizer and decoding settings of evaluate, in the form of a result file."""
    from showattendtell.config.instantiate import build
    from showattendtell.metrics.tokenizers import scoring_name

    config = compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])
    tokenizer = scoring_name(config.tokenizer) if config.get("tokenizer") else "plain"
    return tokenizer, json.loads(json.dumps(build(config.decoding).describe()))


def _stamp(file: Path) -> tuple[int, int]:
    """Return modification time and size of a file, as cache key."""
    about = file.stat()
    return about.st_mtime_ns, about.st_size


def sha256_of(checkpoint: Path) -> str:
    return _hash(checkpoint, _stamp(checkpoint))


@cache
def _hash(checkpoint: Path, stamp: tuple[int, int]) -> str:
    return sha256(checkpoint)


@cache
def _read(file: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    content: dict[str, Any] = parse_json(read_text(file), str(file))
    return content
