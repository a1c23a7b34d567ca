"""Checks of settings from untrusted files: such settings are data and must not run code."""

import os
import re
import sys
from collections.abc import Container, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from showattendtell.config.command_line import config_folders, escaped
from showattendtell.config.signatures import read_signature
from showattendtell.config.validation import TARGET, find_targets
from showattendtell.errors import UserError, printable
from showattendtell.settings import all_values, has_control

TRUST = "SHOWATTENDTELL_TRUST"  # environment variable with the user's own packages or targets, separated by commas
TRUSTED = "showattendtell.trusted"  # group of the entry points by which an installed package names its own
SCHEMA = "showattendtell.config.schemas.TrainConfig"
LIMIT = 8_000  # the largest number of characters in a stored command, which takes Hydra seconds to parse
DEPTH = 20  # how deep stored metadata may be nested
VALUES, CHARACTERS = 1_000_000, 20_000_000  # the most values in stored metadata, most of them words
PLAIN = str | int | float | bool | dict | list | None
SETTINGS, SETTINGS_CHARACTERS = 5_000, 100_000  # the same for a stored configuration: OmegaConf is slow


def trusted_targets() -> list[str]:
    """Return the patterns of every `_target_` that a file may name: those in conf/, those that the user trusts, and
    those of installed packages."""
    user_targets = [name.strip() for name in os.environ.get(TRUST, "").split(",") if name.strip()]
    user_targets += _installed_targets()
    return [*_targets_in_conf(), *user_targets, *(f"{name}.*" for name in user_targets)]


@cache
def _installed_targets() -> list[str]:
    """Return the packages or targets in the entry points of installed distributions.

    The working directory does not count: a folder from others may have metadata that nobody has installed.
    """
    # not `entry_points`, which of two distributions with one name reads only that in the working directory
    path = [folder for folder in sys.path if Path(folder).resolve() != Path.cwd().resolve()]
    points = chain.from_iterable(each.entry_points.select(group=TRUSTED) for each in distributions(path=path))
    return sorted({point.value.replace(":", ".") for point in points})


@cache
def _targets_in_conf() -> list[str]:
    texts = [file.read_text(encoding="utf-8") for folder in config_folders() for file in Path(folder).rglob("*.yaml")]
    return sorted(name for text in texts for name in re.findall(rf"^ *{TARGET}: *(\S+)", text, re.MULTILINE))


def untrusted_targets(node: Any) -> list[str]:
    """Return the targets in a configuration as plain data that are not trusted."""
    trusted = trusted_targets()
    return [target for target in find_targets(node) if not any(fnmatchcase(target, name) for name in trusted)]


def check_targets(settings: Any, file: str | Path, typed: Container[str] = ()) -> None:
    """Raise a `UserError` if the configuration in a file names a target that is neither trusted nor among the `typed`
    ones, which the user's own command names."""
    for target in untrusted_targets(settings):
        if target not in typed:
            raise UserError(
                f"{file} asks to run {printable(target, 100)}, which is not part of showattendtell; if it is your own, "
                f"give {TRUST}={_package(target)} in the environment, else do not trust the file"
            )


def literal(settings: Mapping[str, Any]) -> DictConfig:
    """Return a stored configuration in which every text is literal: OmegaConf resolves no `${...}` in it."""

    def literally(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {key: literally(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [literally(value) for value in node]
        return escaped(node) if isinstance(node, str) else node

    return DictConfig(literally(settings))


def stored_arguments(content: Any, file: Path) -> list[str]:
    """Return the arguments that a file holds.

    Raises:
        UserError: if they are not a list of texts, or longer than `LIMIT`.
    """
    is_list = isinstance(content, list) and all(isinstance(argument, str) for argument in content)
    if not is_list or sum(map(len, content), len(content)) > LIMIT:
        raise UserError(
            f"{file} was altered: its arguments are not a list of strings of at most {LIMIT:,} characters; train again "
            "without resume"
        )
    check_content(content, file)
    return content


def check_content(content: Any, file: str | Path) -> None:
    """Raise a `UserError` unless stored metadata are plain numbers, texts, lists and dicts of a usual size, and no text
    has control characters: on a terminal they are commands."""
    _check_values(content, file, VALUES, CHARACTERS)
    config = content.get("config") if isinstance(content, dict) else None
    _check_values(config, file, SETTINGS, SETTINGS_CHARACTERS)


def _check_values(content: Any, file: str | Path, max_values: int, max_characters: int) -> None:
    """Nodes are counted as often as they are referred to, as everything else reads them."""
    nodes, values, characters = [(content, 0)], 0, 0
    while nodes:
        node, depth = nodes.pop()
        if isinstance(node, str):
            characters += len(node)
        elif isinstance(node, dict | list | tuple):
            values += len(node)
            inner = chain(node, node.values()) if isinstance(node, dict) else node
            nodes += [(value, depth + 1) for value in inner]
        elif not isinstance(node, bool | int | float | None):
            raise UserError(f"{file} was altered: it has a {type(node).__name__} among its settings; use another copy")
        if values > max_values or characters > max_characters or depth > DEPTH:
            raise UserError(
                f"{file} was altered: it has more than {max_values:,} values or {max_characters:,} characters, or they "
                f"are nested more than {DEPTH} deep; do not trust the file"
            )
        if isinstance(node, str) and has_control(node):
            raise UserError(f"{file} was altered: {printable(node, 100)} has control characters; do not trust the file")


def recalled(stored: Sequence[str], typed: Sequence[str], file: Path) -> list[str]:
    """Return the arguments of a stored command, without the settings that the user has typed again.

    They are data: only settings of this project, with trusted targets and without interpolations. The `typed` ones on
    the command line may be anything.

    Raises:
        UserError: for any other argument in `file`.
    """
    retyped = {argument.partition("=")[0].lstrip("+") for argument in typed}
    kept = [argument for argument in stored if argument.partition("=")[0].lstrip("+") not in retyped]
    for argument in kept:
        _refuse_code(argument, file)
    return kept


def _refuse_code(argument: str, file: Path) -> None:
    """Raise a `UserError` for a stored argument that is no setting, or that could run code or read the environment."""

    def refusal(reason: str) -> UserError:
        return UserError(f"{file} holds the argument {printable(argument, 100)}, {reason}, else do not trust the file")

    name = re.match(r"\+*([A-Za-z_][\w./]*)=", argument)
    try:
        node = OverridesParser.create().parse_override(argument).value()
    except (HydraException, RecursionError):
        name = None
    if name is None or name[1].count(".") >= DEPTH or not all(isinstance(value, PLAIN) for value in all_values(node)):
        raise refusal("which is not name=value; train again without resume")
    path = re.split("[./]", name[1])
    if path[0] in ("hydra", "resume"):
        raise refusal(f"and settings of {path[0]} are not recalled; if you need it, type it again")
    if re.search(r"\$\{[^}]*:", argument):  # a resolver, such as oc.env
        raise refusal("and ${...} in it is not resolved; if you need it, type it again")
    is_choice = len(path) == 1 or "/" in name[1]
    if is_choice and path[0] not in read_signature(SCHEMA).parameters and re.search(r"\.\.|\$|[=,\[]/", argument):
        raise refusal("which is no name of an option; if you need it, type it again")
    for name in filter(None, reversed(path)):
        node = {name: node}
    for target in untrusted_targets(node):
        raise refusal(
            f"which asks to run {printable(target, 100)}, not part of showattendtell; if it is your own, type the "
            f"argument again or give {TRUST}={_package(target)} in the environment"
        )


def _package(target: str) -> str:
    package = target.partition(".")[0]
    return package if package.isidentifier() and len(package) <= 100 else "PACKAGE"
