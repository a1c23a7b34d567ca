"""Check settings: against the signatures of their targets, with all errors at once; and those from files of others,
which are data and must not run code."""

import copy
import os
import re
import sys
import traceback
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from showattendtell.config.command_line import config_folders
from showattendtell.config.names import MEANT
from showattendtell.config.signatures import Signature, SignatureError, read_signature
from showattendtell.errors import UserError, first_line, printable
from showattendtell.settings import CONTROL, all_values, as_meant, format_value, is_part, join, leaves, value_errors

TARGET = "_target_"

SUPPLIED = {
    "vocabulary": "captions tokenizer",
    "distillation": "dataset tokenizer",
    "augment": "seed",
    "data": "dataset vocabulary source seed",
    "attention": "region_dim hidden_dim",
    "attention.score": "region_dim hidden_dim",
    "decoder": "vocabulary_size region_dim",
    "optimizer": "params",
    "callbacks.early_stopping": "monitor mode check_on_train_epoch_end",
    "trainer": "default_root_dir logger callbacks enable_progress_bar enable_model_summary use_distributed_sampler "
    "num_sanity_val_steps plugins",
}
"""Arguments of a part that the code passes; they are not settings."""

NODES = ("distillation", "vocabulary", "features", "augment", "data")
"""Parts that are no config groups, and have no value of their own."""

RUN_FOLDER = "hydra.run.dir"
SIMILAR = 0.75  # less alike names, as of 1 for equal ones, are no typing errors

TRUST = "SHOWATTENDTELL_TRUST"  # environment variable with the user's own packages or targets, separated by commas
TRUSTED = "showattendtell.trusted"  # group of the entry points by which an installed package names its own
DEPTH = 20  # how deep stored metadata may be nested
VALUES, CHARACTERS = 1_000_000, 20_000_000  # the most values in stored metadata, most of them words
SETTINGS, SETTINGS_CHARACTERS = 5_000, 100_000  # the same for a stored configuration: to check it is slow


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `read_settings`; raise a `UserError` that lists all errors."""
    settings, errors = read_settings(config)
    raise_errors(errors)
    return settings


def validate(config: Mapping[str, Any]) -> list[str]:
    """Return the errors of `read_settings`."""
    return read_settings(config)[1]


def read_settings(config: Mapping[str, Any], complete: bool = True) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration as plain data, with values in the form that their annotations ask for (see `as_meant`),
    and an error message for every setting that is missing, unknown to its target, or of the wrong type or range.

    With `complete=False` a missing setting is not an error.

    Args:
        config: composed by Hydra; or stored as plain data, whose texts are literal: no `${...}` is resolved.
    """
    try:
        missing = OmegaConf.missing_keys(config) if isinstance(config, DictConfig) else set[str]()
        plain = copy.deepcopy(to_plain(config))
    except OmegaConfBaseException as error:
        return {}, [sentence(error)]
    errors = [f"{key} is not set; give it as {key}=..." for key in sorted(missing) if complete]
    nodes = dict(_nodes("", plain))
    known = [*filter(None, nodes), *([RUN_FOLDER] if "trainer" in nodes else [])]
    unknown: list[tuple[str, Any]] = []
    for path, node in nodes.items():
        try:
            signature = node_signature(path, node)
        except SignatureError as error:
            errors.append(f"{join(path, TARGET)}={format_value(node[TARGET])}: {error}")
            continue
        parent = path.rpartition(".")[0]
        if node.get("_partial_") and not (parent and TARGET in nodes[parent]):
            errors.append(f"{path}._partial_ is for an argument of a part; leave it out")
        known += [join(path, name) for name in signature.parameters]
        for key, value in node.items():
            name, parameter = join(path, str(key)), signature.parameters.get(key)
            is_known_node = name in nodes and (parameter or TARGET not in node)
            if key in (TARGET, "_partial_") or name in missing or is_known_node:
                continue
            if key in SUPPLIED.get(path, "").split():
                errors.append(f"{name} is set by the code; leave it out")
            elif parameter and not is_part(parameter.annotation):
                meant = as_meant(value, parameter.annotation, node.get("root"))
                errors += value_errors(name, meant, parameter.annotation)
                if meant != value:
                    node[key] = meant
            elif (parameter or not signature.open) and value not in (None, {}):
                unknown += [(name, leaf) for leaf, _ in leaves(name, value)]
    wrong = tuple(f"{name}." for name, _ in unknown)
    known = [name for name in known if not f"{name}.".startswith(wrong)]
    for name, leaf in unknown:
        hint = f"; give its own settings as {leaf}.NAME=value" if leaf in NODES and leaf not in MEANT else ""
        errors.append(f"there is no setting {leaf}{hint or _similar(leaf, known) or _similar(name, known)}")
    return plain, errors


def node_signature(path: str, node: Mapping[str, Any]) -> Signature:
    """Return the signature of a node's target, without the arguments that the code passes.

    Raises:
        SignatureError: the target does not exist.
    """
    if TARGET not in node:
        return Signature(open=not path)
    signature = read_signature(str(node[TARGET]))
    supplied = SUPPLIED.get(path, "").split()
    return signature._replace(parameters={n: p for n, p in signature.parameters.items() if n not in supplied})


def to_plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain data, with its interpolations resolved."""
    settings: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    return dict(settings)


def _nodes(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a node of a configuration as plain data, and the nodes in it: parts, and groups of parts."""
    yield path, node
    for key, value in node.items():
        if isinstance(value, dict) and find_targets(value):
            yield from _nodes(join(path, str(key)), value)


def _similar(setting: str, known: Sequence[str]) -> str:
    """Return a hint at the settings that a name means elsewhere or that have the same last name, or else at those of a
    similar name, or at all of its node."""
    path, _, last = setting.rpartition(".")
    split = {name: name.rpartition(".") for name in known}
    told = [name for name in MEANT.get(setting, MEANT.get(last, [])) if _is_there(name, known)]
    ends = [end for _, _, end in split.values()]
    close = [last] if last in MEANT or last in ends else get_close_matches(last, ends, 1, SIMILAR)
    alike = [name for name in split if split[name][2] in close]
    alike = [name for name in alike if split[name][0] == path] or alike
    own = [name for name in told if path and name.startswith(f"{path}.")]
    if meant := dict.fromkeys(own or [*told, *sorted(alike)]):
        return f"; did you mean {' or '.join(name if ' ' in name else repr(name) for name in meant)}?"
    siblings = sorted(end for node, _, end in split.values() if node == path)
    return f"; available: {', '.join(siblings)}" if siblings else ""


def _is_there(name: str, known: Sequence[str]) -> bool:
    """Return whether a command has a setting, or a choice such as `dataset=NAME`; commands are always there."""
    is_choice = "=" in name and (RUN_FOLDER in known or (name.startswith("decoding") and "decoding.prefix" in known))
    return is_choice or " " in name or name in known


def raise_errors(errors: Sequence[str]) -> None:
    """Raise one `UserError` that lists all errors, if there are any."""
    lines = list(dict.fromkeys(errors))
    if lines:
        raise UserError(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings are wrong:", *lines]))


def find_targets(node: Any) -> list[str]:
    """Return every `_target_` in a configuration as plain data."""
    return [str(value[TARGET]) for value in all_values(node) if isinstance(value, Mapping) and TARGET in value]


def with_defaults(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return plain settings with the defaults of all arguments that they leave out, as a record of a run."""
    filled: dict[str, Any] = {}
    with suppress(SignatureError):
        for name, parameter in node_signature(path, settings).parameters.items():
            if parameter.default is not None:
                filled[name] = parameter.value
    for key, value in settings.items():
        filled[key] = with_defaults(value, join(path, key)) if isinstance(value, Mapping) else value
    return filled


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


USER_ERRORS = (UserError, HydraException, OmegaConfBaseException, YAMLError, OSError, RecursionError)
"""Exceptions that are reported without a traceback."""


def sentence(error: Exception) -> str:
    """Return what is wrong and what to do; for an unexpected exception its type and the first line of its message."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key}: {first_line(error)}" if error.full_key else first_line(error)
    if isinstance(error, HydraException):
        if choice := re.search(r"default list use \+(.*)|config use \+(hydra/.*)", str(error)):
            return f"{choice[1] or choice[2]} cannot be chosen here; leave it out"
        return sentence(error.__cause__) if isinstance(error.__cause__, OmegaConfBaseException) else first_line(error)
    if isinstance(error, YAMLError):  # its last line names the file
        return " ".join(str(error).split())
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename} does not exist"
    if isinstance(error, OSError):  # errors of a network have neither a file nor a number
        file = f"{error.filename}: " if error.filename else ""
        return f"{file}{error.strerror or first_line(error)}"
    if isinstance(error, RecursionError):
        return "an argument or a file is nested too deeply; shorten it (--debug shows where)"
    return f"{type(error).__name__}: {first_line(error)}"


DEBUG = "SHOWATTENDTELL_DEBUG"  # the environment variable that `--debug` sets to 1, for child processes too


def error_message(error: Exception) -> str:
    """Return `error: ...` for the user; after its traceback with `--debug`. Only the traceback of an unexpected one."""
    is_known = isinstance(error, USER_ERRORS)
    message = f"error: {sentence(error)}\n" if is_known else ""
    if is_known and os.environ.get(DEBUG) != "1":
        return message
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain[-1].__suppress_context__ = False  # also show what `from None` hides
        chain.append(cause)
    return "".join([*traceback.format_exception(error), message])
