"""Where conf/ is, what a command's choices make of it, and which choices there are."""

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.singleton import Singleton
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from showattendtell.errors import UserError

LAUNCHER = "hydra/launcher"
"""The group of what runs the runs of a sweep."""

SEARCH = "sweep"
"""The group of search spaces."""

OF_SEARCHES = ("hydra/sweeper/sampler", "hydra/sweeper/pruner")
"""The groups of what proposes trials, and of what ends hopeless ones."""


def config_folder() -> str:
    """`conf/`: inside the package where it was installed as a wheel, else at the top of the checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return str(folder)
    raise UserError(f"the folder conf/ is missing beside {package}; reinstall showattendtell")


def command_folder(name: str) -> str:
    """The folder of a command's YAML: `conf/`, or `conf/NAME/` where the command has groups of its own."""
    own = Path(config_folder(), name)
    return str(own) if (own / f"{name}.yaml").is_file() else config_folder()


def compose(name: str, overrides: Sequence[str]) -> tuple[DictConfig, dict[str, list[str]]]:
    """The configuration of a command, and the options of each of its groups.

    Among them are the nested groups (`attention/score`) of every option, also of those that are not chosen.
    """
    config, groups = _compose(command_folder(name), name, tuple(overrides))
    return copy.deepcopy(config), dict(groups)


@lru_cache(maxsize=64)
def _compose(folder: str, name: str, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, list[str]]]:
    """The check of a command line asks for the same ones again and again, each of which takes a tenth of a second."""
    with hydra.initialize_config_dir(folder):
        try:
            config = hydra.compose(name, list(overrides), return_hydra_config=True)
        except MissingConfigException as fault:
            raise UserError(_mismatch(fault) or str(fault).splitlines()[0]) from None
        except (HydraException, OmegaConfBaseException) as fault:
            raise UserError(str(fault).splitlines()[0]) from None
        return config, _groups(folder, tuple(reversed(list(config.hydra.runtime.choices))))


@contextmanager
def beside_a_command() -> Iterator[None]:
    """Lets configurations be composed while a command runs, for which Hydra has one already."""
    if not GlobalHydra.instance().is_initialized():
        yield
        return
    of_the_command = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        Singleton.set_state(of_the_command)


def _mismatch(fault: MissingConfigException) -> str | None:
    """The sentence for an option that has a file for some options of another group only (`/variant/released/hard`)."""
    asking = re.match(r"In '([^']+)/([^'/]+)'", str(fault))
    folder, _, missing = (fault.missing_cfg_file or "").rpartition("/")
    made_for = sorted(path.stem for path in Path(config_folder(), folder).glob("*.yaml"))
    if not asking or not folder or not made_for:
        return None
    return f"{asking[1]}={asking[2]} is not made for '{missing}'; it is for {', '.join(made_for)}"


@cache
def _groups(folder: str, chosen: tuple[str, ...]) -> dict[str, list[str]]:
    """The options of the groups that are chosen from, as Hydra finds them while it composes what is in the folder."""
    outer = [group for group in chosen if "/" not in group and group != "hydra"]
    own = [group for name in outer for group in (name, *_nested_groups(name))]
    return {group: _options(group) for group in (*own, LAUNCHER, *(OF_SEARCHES if SEARCH in own else ()))}


def _options(group: str) -> list[str]:
    """The files of the group's folder, and as `FOLDER/NAME` those of the subfolders that no option of it builds on."""
    named = {entry.removeprefix(f"/{group}/").partition("/")[0] for entry in _defaults(group)}
    folders = [folder for folder in _subfolders(group) if folder not in named]
    return [*_files(group), *(f"{folder}/{option}" for folder in folders for option in _options(f"{group}/{folder}"))]


def _nested_groups(group: str) -> list[str]:
    """The subfolders from which options of the group choose."""
    return [f"{group}/{folder}" for folder in _subfolders(group) if folder in _defaults(group)]


def _defaults(group: str) -> set[str]:
    """The groups and files that the defaults lists of the group's options name."""
    files = [Path(config_folder(), group, f"{option}.yaml") for option in _files(group)] if _subfolders(group) else []
    options: list[Any] = [OmegaConf.to_container(OmegaConf.load(file)) for file in files]
    return {name for option in options for entry in option.get("defaults", []) for name in _names(entry)}


def _names(entry: str | dict[str, str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry)


def _files(group: str) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.CONFIG)


def _subfolders(group: str) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.GROUP)
