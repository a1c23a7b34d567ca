"""What `reproduce` is told: a table's recipes, and what of them is to be run."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import Field

from showattendtell.arguments import NonNegativeInt, PositiveFloat, PositiveInt, Text
from showattendtell.config.entry import quoted

QUOTES = "\"'"


class Recipe(NamedTuple):
    """A row of a table: a training, or the mean of others.

    settings: what train is given besides the seed.
    paper: the model of the paper's Table 1 that it stands beside, if there is one.
    minutes: what training takes with one seed on one core, about; null where nobody has seen it.
    begins_with: the recipe whose best weights of the same seed its training begins with, if it is a second stage.
    mean_of: instead of settings, the recipes whose best weights of the same seed are averaged.
    """

    settings: Sequence[Text] = ()
    paper: Text | None = None
    minutes: PositiveFloat | None = None
    begins_with: Text | None = None
    mean_of: Sequence[Text] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The recipes that come before it."""
        return (*([self.begins_with] if self.begins_with else []), *self.mean_of)


class PaperTable(NamedTuple):
    """Recipes that are rows of one table.

    name: its name, also that of its files.
    folder: that of its runs, runs/paper-FOLDER, which tables may share: recipes of one name are trained once.
    recipes: them by name, in the order of the rows.
    base: the recipe that the others are compared with.
    pages: the recipes that are shown side by side on the page of photographs.
    seeds: with which each recipe is trained.
    decodings: how the test images are captioned: a number is a beam of so many captions, a word an option of decoding.
    decoding: the one with which recipes are compared, among decodings.
    ensembles: rows of all seeds of a recipe, or of several, that write as one model, by name.
    """

    name: Text
    folder: Text
    recipes: Mapping[str, Recipe]
    base: Text
    pages: Sequence[Text]
    seeds: Annotated[Sequence[NonNegativeInt], Field(min_length=1)] = (1, 2, 3)
    decodings: Annotated[Sequence[PositiveInt | Text], Field(min_length=1)] = (1, 3, 5, "consensus")
    decoding: PositiveInt | Text = 3
    ensembles: Mapping[str, Text | Sequence[Text]] = MappingProxyType({})

    def members(self, ensemble: str) -> list[str]:
        """The recipes whose models write as one."""
        named = self.ensembles[ensemble]
        return [named] if isinstance(named, str) else list(named)


class ScoredData(NamedTuple):
    """Where the data set is, and what is known of it besides.

    root: the data set's folder, if it is not where its recipes look for it.
    entities: Flickr30k Entities, a zip or folder, for the boxes that people drew: how well does attention find things?
    instances: COCO's instances, a file or a list of files, for the same.
    """

    root: Text | None
    entities: Text | None
    instances: Text | Sequence[Text] | None


class Reproduce(NamedTuple):
    """
    table: what is reproduced.
    recipes: which of the table's recipes are run; all by default, and none with [], for the table of what is there.
    seeds: with which seeds they are run; the table's own by default.
    settings: settings of train that all runs get, as [trainer.max_epochs=1,cache=DIR].
    plan: only show what there is to do.
    output: the folder of the runs and the table; runs/paper-FOLDER of the table by default.
    """

    table: Text
    recipes: Text | Sequence[Text] | None
    seeds: Annotated[Sequence[NonNegativeInt], Field(min_length=1)] | None
    settings: Text | Sequence[Text]
    plan: bool
    output: Text | None


def quote_settings(arguments: Sequence[str]) -> list[str]:
    """The arguments with `settings=[a=1,b=[2,3]]` as Hydra takes it, each setting in quotes."""
    return [_quote_each(argument) if argument.startswith("settings=") else argument for argument in arguments]


def _quote_each(argument: str) -> str:
    name, _, value = argument.partition("=")
    if value == "null":
        return argument
    inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    settings = [setting for setting in map(str.strip, _split(inner)) if setting]
    return f"{name}=[{','.join(setting if setting[0] in QUOTES else quoted(setting) for setting in settings)}]"


def _split(text: str) -> list[str]:
    """At the commas that stand in no brackets and no quotes."""
    parts, depth, quote, before = [""], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote and before != "\\" else quote
        elif character in QUOTES:
            quote = character
        else:
            depth += (character in "[{(") - (character in "]})")
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
        before = character
    return parts
