"""Compose the configurations of commands from conf/, list the options of config groups, and compare configurations."""

import ast
import copy
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from showattendtell.config.hydra_internals import apply_values, outside_of_command, parse_overrides
from showattendtell.config.signatures import read_signature
from showattendtell.config.validation import TARGET, format_value, leaves
from showattendtell.errors import UserError, first_line, listed
from showattendtell.settings import may_differ

LAUNCHER = "hydra/launcher"  # the config group of launchers, which run the runs of a sweep
SEARCHPATH = "hydra.searchpath"  # the setting with the user's own folders of options
SEARCH = "sweep"  # the config group of search spaces
OF_SEARCHES = ("hydra/sweeper/sampler", "hydra/sweeper/pruner")  # samplers propose trials, pruners stop some early
PLAIN = {TARGET: "showattendtell.data.tokenizers.PlainTokenizer"}
"""The default tokenizer."""
IMPLIED = {"tokenizer": PLAIN}
"""Nodes that stored configurations leave out if they are unchanged: earlier versions do not have them."""

DEFAULT = "its default"  # shown for a setting that a configuration does not contain
MODEL = ("encoder", "attention", "decoder")  # the groups of settings that shape the model

FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C, where PyYAML was built with it

HARMLESS = {
    *("weights", "trainable", "frozen_stride", "learning_rate", "gradient_checkpointing"),
    *(TARGET, "dropout", "dropout_places"),
}
"""Model settings that may differ when weights are loaded from another model."""


def config_folder() -> str:
    """Return the path of `conf/`: inside the package if installed as a wheel, else at the top of the checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return str(folder)
    raise UserError(f"the folder conf/ is missing next to {package}; reinstall showattendtell")


def command_folder(name: str) -> str:
    """Return the folder of a command's YAML: `conf/`, or `conf/NAME/` if the command has its own config groups."""
    folder = Path(config_folder(), name)
    return str(folder) if (folder / f"{name}.yaml").is_file() else config_folder()


def find_searchpath(arguments: Iterable[str]) -> list[str]:
    """Return the argument that names the user's own folders of options, if it is given."""
    return [argument for argument in arguments if argument.startswith(f"{SEARCHPATH}=")]


def compose(name: str, overrides: Sequence[str]) -> tuple[DictConfig, dict[str, list[str]]]:
    """Return the configuration of a command, and the options of each of its config groups.

    The groups include the nested groups (`attention/score`) of every option, chosen or not.

    Raises:
        UserError: Hydra cannot compose it.
    """
    folder = command_folder(name)
    try:
        values = [override for override in parse_overrides(overrides) if _sets_value(override, folder)]
        if any(line.lstrip("+").startswith("hydra") for line in overrides):
            values = []  # `hydra.searchpath` may add groups
        lines = {override.input_line for override in values}
        composed, groups = _compose(folder, name, tuple(line for line in overrides if line not in lines))
        config = pickle.loads(composed)
        apply_values(config, values)
    except MissingConfigException as error:
        raise UserError(_mismatch(error) or first_line(error)) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(first_line(error)) from None
    return config, dict(groups)


def _sets_value(override: Override, folder: str) -> bool:
    """Return whether an argument sets one value, and does not choose among the options of a group."""
    key = override.key_or_group
    is_plain = not (override.is_delete() or override.is_sweep_override() or override.package is not None)
    return is_plain and "/" not in key and not Path(folder, key).is_dir()


def without_hydra(config: DictConfig) -> DictConfig:
    """Remove Hydra's own settings from a composed configuration, and return it."""
    OmegaConf.set_struct(config, False)  # Hydra composes in struct mode, which forbids to remove a node
    config.pop("hydra")
    return config


def to_plain(config: Mapping[str, Any], resolve: bool = True) -> dict[str, Any]:
    """Return a configuration as plain data, by default with its interpolations resolved."""
    settings: Any = OmegaConf.to_container(config, resolve=resolve) if isinstance(config, DictConfig) else config
    return dict(settings)


def load_plain(file: Path) -> dict[str, Any]:
    """Return the settings of a YAML file as plain data, without resolving any interpolation."""
    settings: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return settings


def purpose(group: str, option: str) -> str:
    """Return the first line of the comment at the top of an option's YAML."""
    lines = _option_text(group, option).splitlines()
    comments = (line.removeprefix("# ") for line in lines if line.startswith("# ") and "@package" not in line)
    return next(comments, "")


def _option_text(group: str, option: str) -> str:
    """Return the YAML of an option, empty for those in the user's own folders."""
    file = Path(config_folder(), group, f"{option}.yaml")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def with_overrides(config: DictConfig, **changes: Any) -> DictConfig:
    """Return a stored configuration with the changes that are not null."""
    merged = copy.deepcopy(config)
    for name, change in changes.items():
        if isinstance(change, Mapping):
            inner = {str(key): value for key, value in change.items() if key != TARGET}
            merged[name] = with_overrides(merged[name], **inner)
        elif change is not None:
            merged[name] = change
    return merged


@lru_cache(maxsize=256)
def _compose(folder: str, name: str, overrides: tuple[str, ...]) -> tuple[bytes, dict[str, list[str]]]:
    """Cached `compose` of choices: the check of a command line repeats calls, and each takes a tenth of a second.

    The configuration is pickled: bytes become a `DictConfig` in a sixth of the time of a deep copy.
    """
    with outside_of_command(), hydra.initialize_config_dir(folder):
        config = hydra.compose(name, list(overrides), return_hydra_config=True)
        chosen = tuple(reversed(list(config.hydra.runtime.choices)))
        return pickle.dumps(config), _groups(folder, tuple(find_searchpath(overrides)), chosen)


def _mismatch(error: MissingConfigException) -> str | None:
    """Return the error message if an option supports only some options of another group (`/variant/released/hard`)."""
    asking = re.match(r"In '([^']+)/([^'/]+)'", str(error))
    folder, _, missing = (error.missing_cfg_file or "").rpartition("/")
    options = sorted(path.stem for path in Path(config_folder(), folder).glob("*.yaml"))
    if not asking or not folder or not options:
        return None
    return f"{asking[1]}={asking[2]} is not made for '{missing}'; it is for {', '.join(options)}"


@cache
def _groups(folder: str, searchpath: tuple[str, ...], chosen: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the options of the config groups of `chosen` and their nested groups, in `conf/` and the user's own
    folders, which the argument `searchpath` names. Needs an initialized Hydra."""
    groups = []
    for group in [group for group in chosen if "/" not in group and group != "hydra"]:
        defaults = _defaults(group, searchpath)
        nested = [name for name in _entries(group, ObjectType.GROUP, searchpath) if name in defaults]
        groups += [group, *(f"{group}/{name}" for name in nested)]
    options = {group: _options(group, searchpath) for group in (*groups, *(OF_SEARCHES if SEARCH in groups else ()))}
    # the plugins bring launchers of other services, such as ray_aws, which this package has no settings for
    launchers = [file.stem for file in Path(config_folder(), LAUNCHER).glob("*.yaml")]
    return options | {LAUNCHER: ["basic", *sorted(launchers)]}


def _entries(group: str, kind: ObjectType, searchpath: tuple[str, ...]) -> list[str]:
    """Return the options of a config group, or its nested groups."""
    loader = GlobalHydra.instance().config_loader()
    return loader.get_group_options(group, kind, overrides=list(searchpath))


def _options(group: str, searchpath: tuple[str, ...]) -> list[str]:
    """Return the files of the group's folder, and `FOLDER/NAME` for those in subfolders that no option builds on."""
    entries = (entry.removeprefix("optional ").removeprefix(f"/{group}/") for entry in _defaults(group, searchpath))
    default_groups = {re.split("[/@]", entry)[0] for entry in entries}
    folders = [name for name in _entries(group, ObjectType.GROUP, searchpath) if name not in default_groups]
    inner = [f"{folder}/{option}" for folder in folders for option in _options(f"{group}/{folder}", searchpath)]
    return _entries(group, ObjectType.CONFIG, searchpath) + inner


def _defaults(group: str, searchpath: tuple[str, ...]) -> set[str]:
    """Return the groups and files named in the defaults lists of the group's options; empty without subfolders."""
    names: set[str] = set()
    has_subfolders = _entries(group, ObjectType.GROUP, searchpath)
    for option in _entries(group, ObjectType.CONFIG, searchpath) if has_subfolders else []:
        for entry in (yaml.load(_option_text(group, option), FAST_LOADER) or {}).get("defaults", []):
            names |= {entry} if isinstance(entry, str) else set(entry)
    return names


def plain_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training configuration as plain data, without `resume`, `stages` and the nodes in `IMPLIED`."""
    left_out = ("resume", "stages", *(name for name, default in IMPLIED.items() if config.get(name) == default))
    return {name: value for name, value in to_plain(config).items() if name not in left_out}


def find_differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return `setting=VALUE instead of VALUE` for each setting that differs from the plain settings of another run,
    except settings that may change when a run is resumed."""
    current, stored = dict(leaves("", plain_settings(config))), dict(leaves("", other))
    return [
        f"{name}={format_value(current.get(name, DEFAULT))} instead of {format_value(stored.get(name, DEFAULT))}"
        for name in {**stored, **current}
        if current.get(name, DEFAULT) != stored.get(name, DEFAULT) and not may_differ(name)
    ]


def model_differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return `setting=VALUE`, with the value in `other`, for each model setting that both have and that differs.
    Defaults in the code count as settings."""
    current, stored = _of_the_model(plain_settings(config)), _of_the_model(other)
    names = [name for name in stored if name in current and name.rpartition(".")[2] not in HARMLESS]
    return [f"{name}={format_value(stored[name])}" for name in names if current[name] != stored[name]]


def trained_with(differences: Sequence[str], choices: Mapping[str, str]) -> str:
    """Describe what an incompatible model was trained with: the settings that differ, or else the options of its config
    groups."""
    groups = [f"{group}={option}" for group, option in choices.items() if group.partition("/")[0] in MODEL]
    return listed(list(differences) or groups, shown=6) or "another encoder"


def _of_the_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model, and the defaults of its classes that are literals."""
    values: dict[str, Any] = {}
    for part in MODEL:
        defaults = {}
        for name, parameter in read_signature(settings[part][TARGET]).parameters.items():
            with suppress(ValueError):
                if parameter.default is not None:
                    defaults[name] = ast.literal_eval(parameter.default)
        values |= leaves(part, {**defaults, **settings[part]})
    return values
