"""The runs of a table: what each of them trains, and how far it is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from showattendtell.config.check import raise_all
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import beside_a_command, compose
from showattendtell.config.differences import find_differences, plain_settings
from showattendtell.config.entry import as_value
from showattendtell.config.reproducing import PaperTable, Recipe
from showattendtell.errors import UserError, did_you_mean, listed
from showattendtell.files import BEST, LAST, PREVIOUS
from showattendtell.report.times import read_times
from showattendtell.reproduction.scoring import Scoring, setting_of, sha256_of
from showattendtell.same_training import may_differ

BEGINNING = "initial_weights.sha256"
"""The file of a second stage, or of a mean, that tells the weights that it was made of."""

OWN = {"seed": ", and choose seeds by seeds=[1]", "initial_weights": "", "resume": "", "stages": ""}
"""Settings of training that each run of a table has of its own, and what to do instead."""


class Run(NamedTuple):
    """A recipe with a seed.

    arguments  of train, but for those that say where it writes
    config     what they make of the settings of training
    scoring    what is to be known of its best checkpoint
    before     the runs with whose best weights it begins, if it is a second stage, or of which it is the mean
    is_mean    whether nothing is trained, but those weights averaged
    """

    recipe: str
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    config: DictConfig
    scoring: Scoring
    before: "tuple[Run, ...]" = ()
    is_mean: bool = False

    @property
    def title(self) -> str:
        return self.scoring.title

    @property
    def can_begin(self) -> bool:
        return all(run.is_finished for run in self.before)

    @property
    def is_begun(self) -> bool:
        return any((self.folder / name).is_file() for name in (LAST, PREVIOUS))

    @property
    def is_trained(self) -> bool:
        """Whether all of its epochs are done; one that stopped early, or a mean, is known by its results alone."""
        return self.scoring.was_scored or (self.num_epochs is not None and self.epochs >= self.num_epochs)

    @property
    def is_finished(self) -> bool:
        return self.scoring.is_finished

    @property
    def minutes_before(self) -> float:
        """That all stages before it have trained, each once."""
        return sum(sum(read_times(folder)) for folder in dict.fromkeys(self._folders_before())) / 60

    def _folders_before(self) -> Iterator[Path]:
        for run in self.before:
            yield from run._folders_before()
            yield run.folder

    @property
    def epochs(self) -> int:
        """That have been trained."""
        return len(read_times(self.folder))

    @property
    def num_epochs(self) -> int | None:
        """That there are to be at most; None without a limit."""
        most = self.config.trainer.get("max_epochs")
        return most if most and most > 0 else None


def make_runs(table: PaperTable, config: DictConfig, folder: Path) -> list[Run]:
    """Those that a command asks for, recipe by recipe.

    A second stage stands behind the runs that it begins with, which are run where it is asked for. Raises `UserError`
    for a table that names what there is not, settings that train does not take, and where the folder holds a run of
    other settings.
    """
    _check(table)
    runs = _make_runs(table, config, folder, _chosen(table, config), config.seeds or table.seeds)
    refuse_other_settings(runs)
    return runs


def finished_runs(table: PaperTable, config: DictConfig, folder: Path) -> list[Run]:
    """All of the table that are there with these settings, whichever the command asks for."""
    return [run for run in _all_runs(table, config, folder) if run.is_finished and not find_other_settings(run)]


def runs_with_other_settings(table: PaperTable, config: DictConfig, folder: Path) -> list[str]:
    """A sentence for each run of the table that is there with other settings than these."""
    return [fault for run in _all_runs(table, config, folder) for fault in find_other_settings(run)]


def _all_runs(table: PaperTable, config: DictConfig, folder: Path) -> list[Run]:
    """Recipes that cannot have the settings have no runs with them; `UserError` where none can."""
    seeds = list(dict.fromkeys([*table.seeds, *(config.seeds or [])]))
    runs: list[Run] = []
    faults = []
    for recipe in table.recipes:
        try:
            made = _make_runs(table, config, folder, dict.fromkeys(_with_beginnings(table.recipes, recipe)), seeds)
        except UserError as fault:
            faults.append(str(fault))
        else:
            runs += [run for run in made if run.recipe == recipe]
    if len(faults) == len(table.recipes):
        raise_all(faults[:1])
    return runs


def _make_runs(
    table: PaperTable, config: DictConfig, folder: Path, recipes: Iterable[str], seeds: Sequence[int]
) -> list[Run]:
    common = [*given_settings(config), *data_settings(config, ["root"])]
    boxed = bool(config.dataset.entities or config.dataset.instances)
    runs: dict[tuple[str, int], Run] = {}
    for name in recipes:
        recipe = table.recipes[name]
        arguments = (*_settings(table.recipes, name), *common)
        settings = _compose(arguments)
        for seed in seeds:
            at = folder / name / str(seed)
            scoring = Scoring(f"{name}, seed {seed}", at, (at / BEST,), tuple(table.decodings), boxed)
            before = tuple(runs[needed, seed] for needed in recipe.needs)
            own = {"seed": seed, **({"initial_weights": str(before[0].folder / BEST)} if recipe.begins_with else {})}
            whole = OmegaConf.merge(settings, own)
            assert isinstance(whole, DictConfig)
            given = (f"{key}={as_value(str(value))}" for key, value in own.items())
            runs[name, seed] = Run(name, seed, at, (*arguments, *given), whole, scoring, before, bool(recipe.mean_of))
    return list(runs.values())


def _settings(recipes: Mapping[str, Recipe], name: str) -> Sequence[str]:
    """Of train; those of a mean are its first part's, as in its checkpoint."""
    recipe = recipes[name]
    return _settings(recipes, recipe.mean_of[0]) if recipe.mean_of else recipe.settings


def refuse_other_settings(runs: Iterable[Run]) -> None:
    """Raises `UserError` where a run's folder holds one of other settings, or one that began with other weights."""
    raise_all([fault for run in runs for fault in find_other_settings(run)][:1])


def _check(table: PaperTable) -> None:
    """All that it names has to be there before hours are spent on it."""
    beginnings = (name for recipe in table.recipes.values() for name in recipe.needs)
    members = (recipe for name in table.ensembles for recipe in table.members(name))
    for name in [table.base, *table.pages, *members, *beginnings]:
        if name not in table.recipes:
            raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")
    _check_means(table)
    if table.decoding not in table.decodings:
        ways = ",".join(map(str, table.decodings))
        raise UserError(
            f"table.decoding={table.decoding}, with which recipes are compared, is not among table.decodings=[{ways}]"
        )
    with beside_a_command():
        for decoding in table.decodings:
            check_command("evaluate", ["checkpoint=best.ckpt", setting_of(decoding)])


def _check_means(table: PaperTable) -> None:
    """A recipe is a training or a mean of several, and none is made of itself."""
    for name, recipe in table.recipes.items():
        if len(recipe.mean_of) == 1 or bool(recipe.settings) == bool(recipe.mean_of):
            raise UserError(f"table={table.name}: {name} needs settings of train, or mean_of with two recipes or more")
        if recipe.mean_of and recipe.begins_with:
            raise UserError(
                f"table={table.name}: {name} is the mean of others, and begins with nothing; leave that out"
            )
    try:
        TopologicalSorter({name: recipe.needs for name, recipe in table.recipes.items()}).prepare()
    except CycleError as fault:
        raise UserError(f"table={table.name}: {' needs '.join(reversed(fault.args[1]))}, which has no end") from None


def _chosen(table: PaperTable, config: DictConfig) -> list[str]:
    """The recipes that are asked for, each behind those that it begins with."""
    given = table.recipes if config.recipes is None else config.recipes
    asked = [given] if isinstance(given, str) else list(given)
    for name in asked:
        if name not in table.recipes:
            raise UserError(f"table={table.name} has no recipe {name}{did_you_mean(name, table.recipes)}")
    return list(dict.fromkeys(name for one in asked for name in _with_beginnings(table.recipes, one)))


def _with_beginnings(recipes: Mapping[str, Recipe], name: str) -> Iterator[str]:
    for first in recipes[name].needs:
        yield from _with_beginnings(recipes, first)
    yield name


def make_ensembles(table: PaperTable, runs: Sequence[Run], folder: Path) -> dict[str, Scoring]:
    """The table's ensembles by name, where there are runs of each of its recipes, and several in all. They have no maps
    in common, and no figures of them."""
    ensembles = {}
    for name in table.ensembles:
        members = [[run for run in runs if run.recipe == recipe] for recipe in table.members(name)]
        together = [run for own in members for run in own]
        if all(members) and len(together) > 1:
            seeds = "_".join("-".join(str(run.seed) for run in own) for own in members)
            models = tuple(run.folder / BEST for run in together)
            ensembles[name] = together[0].scoring._replace(
                title=name, folder=folder / name / seeds, models=models, boxed=False
            )
    return ensembles


def given_settings(config: DictConfig) -> list[str]:
    """Raises `UserError` for one that each run has of its own."""
    given = [config.settings] if isinstance(config.settings, str) else list(config.settings)
    for setting in given:
        name = setting.partition("=")[0].lstrip("+")
        if name in OWN or name.startswith("hydra."):
            raise UserError(f"settings=[{setting}]: {name} is for each run another; leave it out{OWN.get(name, '')}")
    return given


def budget(config: DictConfig) -> list[str]:
    """The settings given to all runs that make them other than the recipes."""
    return [setting for setting in given_settings(config) if not may_differ(setting.partition("=")[0])]


def data_settings(config: DictConfig, names: Sequence[str]) -> list[str]:
    """Some of the command's settings of `dataset` as arguments, where they are given."""
    given = {name: config.dataset[name] for name in names if config.dataset[name] is not None}
    return [f"dataset.{name}={as_value(value)}" for name, value in given.items()]


def _compose(arguments: Sequence[str]) -> DictConfig:
    with beside_a_command():
        config, _ = compose("train", check_command("train", arguments))
    OmegaConf.set_struct(config, False)
    config.pop("hydra")
    return config


def find_other_settings(run: Run) -> list[str]:
    """A sentence if the folder of the run holds one that was begun with other settings."""
    if not (run.is_begun or run.scoring.results):
        return []
    if run.is_mean:
        faults = [fault for part in run.before for fault in find_other_settings(part)]
        if faults:
            return faults
    differences = _differences(run)
    if differences:
        found = listed(differences, shown=5)
        return [f"{run.folder} has other settings: {found}; give its own, or another folder as output=DIR"]
    others = [other.title for other in _made_of_others(run)]
    if others:
        return [f"{run.folder} was made of other weights than {others[0]} has now; delete it to make it anew"]
    return []


def _differences(run: Run) -> list[str]:
    file = run.folder / "config/config.yaml"
    if not file.is_file():
        return []
    theirs = OmegaConf.load(file)
    assert isinstance(theirs, DictConfig)
    beginning = {"initial_weights": run.config.initial_weights} if run.before else {}  # its folder may have moved
    return find_differences(run.config, {**plain_settings(theirs), **beginning})


def _made_of_others(run: Run) -> list[Run]:
    """The runs before it that have other weights by now; a run that was begun by hand says nothing of its weights, and
    a checkpoint that was deleted neither."""
    told = run.folder / BEGINNING
    if not told.is_file():
        return []
    hashes = told.read_text().split()
    if len(hashes) != len(run.before):
        return list(run.before)
    return [before for before, sha256 in zip(run.before, hashes, strict=True) if _has_other_weights(before, sha256)]


def _has_other_weights(run: Run, sha256: str) -> bool:
    best = run.folder / BEST
    return best.is_file() and sha256_of(best) != sha256


def note_beginning(run: Run) -> None:
    """Write down of which weights a second stage, or a mean, is made; a `UserError` where they are gone."""
    gone = [before for before in run.before if not (before.folder / BEST).is_file()]
    if gone:
        raise UserError(
            f"{gone[0].folder} has no {BEST} any more, of which {run.title} is made; delete it to train it anew"
        )
    if run.before:
        run.folder.mkdir(parents=True, exist_ok=True)
        hashes = [sha256_of(before.folder / BEST) for before in run.before]
        (run.folder / BEGINNING).write_text("".join(f"{sha256}\n" for sha256 in hashes))


def expected_seconds(run: Run, runs: Sequence[Run], minutes: float | None) -> float | None:
    """What is left of the training, about: by the run's own epochs, by runs of the same recipe, or by what its table
    says in `minutes`; None where nothing tells."""
    if run.is_finished or run.is_trained or run.is_mean:
        return 0.0
    seconds = read_times(run.folder)
    if seconds and run.num_epochs:
        return mean(seconds) * max(0, run.num_epochs - len(seconds))
    alike = [sum(read_times(other.folder)) for other in runs if other.recipe == run.recipe and other.is_finished]
    return mean(alike) if alike else None if minutes is None else 60 * minutes
