"""Tables of recipes, and the command-line settings of their rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import Field

from showattendtell.config.command_line import quoted
from showattendtell.config.compose import compose
from showattendtell.errors import UserError, did_you_mean
from showattendtell.settings import PositiveFloat, PositiveInt, Seed, Text


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
    def needs(self) -> tuple[str, ...]:
        """Return the recipes that have to be trained before this one with its seed."""
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


def check_table(table: PaperTableConfig) -> None:
    """Raise `UserError` unless everything that the table names exists, before hours are spent on it."""
    used = [name for recipe in table.recipes.values() for name in (*recipe.needs, *recipe.captions_of)]
    members = [name for recipes in table.ensembles.values() for name in as_list(recipes)]
    for name in [table.base, *table.pages, *members, *used]:
        check_recipe(table, name)
    for name, recipe in table.recipes.items():
        if bool(recipe.settings) == bool(recipe.average_of):
            raise UserError(f"table={table.name}: {name} needs either settings of train, or average_of")
    if table.decoding not in table.decodings:
        raise UserError(
            f"table.decoding={table.decoding}, with which recipes are compared, is not among table.decodings="
            f"[{','.join(map(str, table.decodings))}]"
        )
    for decoding in table.decodings:
        compose("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])


def check_recipe(table: PaperTableConfig, name: str) -> None:
    """Raise `UserError` unless the table has a recipe."""
    if name not in table.recipes:
        raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")


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
