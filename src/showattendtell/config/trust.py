"""Checks of settings from untrusted files: such settings are data and must not run code."""

import os
import re
import sys
from collections.abc import Container
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any

from showattendtell.config.command_line import config_folders
from showattendtell.config.validation import TARGET, find_targets
from showattendtell.errors import UserError, printable
from showattendtell.settings import CONTROL

TRUST = "SHOWATTENDTELL_TRUST"  # environment variable with the user's own packages or targets, separated by commas
TRUSTED = "showattendtell.trusted"  # group of the entry points by which an installed package names its own
DEPTH = 20  # how deep stored metadata may be nested
VALUES, CHARACTERS = 1_000_000, 20_000_000  # the most values in stored metadata, most of them words
SETTINGS, SETTINGS_CHARACTERS = 5_000, 100_000  # the same for a stored configuration: OmegaConf is slow


def _trusted_patterns() -> list[str]:
    """Return the patterns of the targets that the user trusts, and of those of installed packages."""
    names = [name.strip() for name in os.environ.get(TRUST, "").split(",") if name.strip()]
    names += _installed_targets()
    return [*names, *(f"{name}.*" for name in names)]


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
def targets_in_conf() -> set[str]:
    """Return every `_target_` in the options of the core and of extensions."""
    texts = [file.read_text(encoding="utf-8") for folder in config_folders() for file in Path(folder).rglob("*.yaml")]
    return set(re.findall(rf"^ *{TARGET}: *(\S+)", "\n".join(texts), re.MULTILINE))


def untrusted_targets(node: Any) -> list[str]:
    """Return the targets in a configuration as plain data that are not trusted."""
    unknown = [target for target in find_targets(node) if target not in targets_in_conf()]
    patterns = _trusted_patterns() if unknown else []  # reading the installed distributions takes a while
    return [target for target in unknown if not any(fnmatchcase(target, name) for name in patterns)]


def check_targets(settings: Any, file: str | Path, typed: Container[str] = ()) -> None:
    """Raise a `UserError` if the configuration in a file names a target that is neither trusted nor among the `typed`
    ones, which the user's own command names."""
    for target in untrusted_targets(settings):
        if target not in typed:
            raise UserError(
                f"{file} asks to run {printable(target, 100)}, which is not part of showattendtell; if it is your own, "
                f"give {TRUST}={_package(target)} in the environment, else do not trust the file"
            )


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
            if CONTROL.search(node):
                raise UserError(
                    f"{file} was altered: {printable(node, 100)} has control characters; do not trust the file"
                )
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


def _package(target: str) -> str:
    package = target.partition(".")[0]
    return package if package.isidentifier() and len(package) <= 100 else "PACKAGE"
