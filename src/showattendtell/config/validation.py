"""Check a composed configuration against the signatures of its targets, and report all errors at once."""

import errno
import os
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from showattendtell.config.signatures import Signature, SignatureError, read_signature
from showattendtell.errors import UserError, did_you_mean, first_line
from showattendtell.settings import format_value as format_value
from showattendtell.settings import value_errors

TARGET = "_target_"

SUPPLIED = {
    "vocabulary": ("captions", "tokenizer", "languages"),
    "augment": ("seed",),
    "data": ("dataset", "vocabulary", "source", "seed"),
    "attention": ("region_dim", "hidden_dim"),
    "attention.score": ("region_dim", "hidden_dim"),
    "decoder": ("vocabulary_size", "region_dim"),
    "optimizer": ("params",),
    "callbacks.early_stopping": ("monitor", "mode", "check_on_train_epoch_end"),
    "trainer": (
        *("default_root_dir", "logger", "callbacks", "enable_progress_bar", "enable_model_summary"),
        *("use_distributed_sampler", "num_sanity_val_steps", "plugins"),
    ),
}
"""Arguments of a part that the code passes; they are not settings."""


NODES = ("loss", "distillation", "vocabulary", "features", "data")
"""Parts that are no config groups, and have no value of their own."""


def validate(config: DictConfig, complete: bool = True) -> list[str]:
    """Return an error message for every setting that is missing, unknown to its target, or of the wrong type or range.

    With `complete=False` a missing setting is not an error. A single value becomes a list where a list is meant.
    """
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        missing = sorted(OmegaConf.missing_keys(own)) if complete else []
        settings: Any = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        return [f"{error.full_key}: {first_line(error)}"]
    errors = list(_node_errors("", settings, settings))
    for name, value in leaves("", settings):
        if isinstance(value, SingleValue):
            OmegaConf.update(config, name, list(value))
    return [*(f"{key} is not set; give it as {key}=..." for key in missing), *errors]


class SingleValue(list):
    """A list of the value that was given instead of it."""


def raise_errors(errors: Sequence[str]) -> None:
    """Raise one `UserError` that lists all errors, if there are any."""
    if errors:
        raise UserError(errors[0] if len(errors) == 1 else "\n  ".join([f"{len(errors)} settings are wrong:", *errors]))


def find_targets(node: Any) -> Iterator[str]:
    """Yield every `_target_` in a configuration as plain data."""
    if isinstance(node, Mapping):
        yield from ([str(node[TARGET])] if TARGET in node else [])
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else ()
    for value in inner:
        yield from find_targets(value)


def with_defaults(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return plain settings with the defaults of all arguments that they leave out, as a record of a run."""
    filled: dict[str, Any] = {}
    if target := settings.get(TARGET):
        with suppress(SignatureError):
            for name, parameter in read_signature(target).parameters.items():
                if parameter.default is not None and name not in SUPPLIED.get(path, ()):
                    filled[name] = parameter.value
    for key, value in settings.items():
        filled[key] = with_defaults(value, join(path, key)) if isinstance(value, Mapping) else value
    return filled


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value


def _has_parts(value: Any) -> bool:
    return isinstance(value, Mapping) and any(map(_is_part, value.values()))


def _names(path: str, node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the full names of all settings that a node accepts, and of the nodes in it."""
    if TARGET in node:
        with suppress(SignatureError):
            for name in read_signature(str(node[TARGET])).parameters:
                if name not in SUPPLIED.get(path, ()):
                    yield join(path, name)
    for key, value in node.items():
        if _is_part(value) or _has_parts(value) or (not path and value == {}):
            yield join(path, key)
            yield from _names(join(path, key), value)


def _node_errors(path: str, node: dict[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors in a node of all settings, and in the nodes in it."""
    target = str(node.get(TARGET, ""))
    signature = Signature({}, False, "")
    if TARGET in node:
        try:
            signature = read_signature(target)
        except SignatureError as error:
            yield f"{join(path, TARGET)}={format_value(node[TARGET])}: {error}"
            return
    # at the top, `callbacks` and `logger` are nodes of nodes
    accepts_parts = not path or not target or signature.open
    for key, value in node.items():
        name = join(path, str(key))
        if key in (TARGET, "_partial_") or value == "???":
            continue
        if key in SUPPLIED.get(path, ()):
            yield f"{name} is set by the code; leave it out"
        elif (_is_part(value) or _has_parts(value)) and (accepts_parts or key in signature.parameters):
            yield from _node_errors(name, value, settings)
        elif key in signature.parameters:
            annotation = signature.parameters[key].annotation
            if annotation is not None and not _is_part(value):
                errors = list(value_errors(name, value, annotation))
                if errors and not list(value_errors(name, [value], annotation)):
                    node[key] = SingleValue([value])
                else:
                    yield from errors
        elif (target and not signature.open) or (path and not target and value is not None):
            yield from _unknown(name, value, list(_names("", settings)), target)


def _unknown(name: str, value: Any, known: Sequence[str], target: str) -> Iterator[str]:
    """Yield an error for a setting that does not exist, or for each one in a node that does not exist."""
    path = name.rpartition(".")[0]
    for leaf, _ in leaves(name, value):
        hint = _similar(leaf, known) or _similar(name, known)
        if name in NODES and leaf == name:
            hint = f"; give its own settings as {name}.NAME=value"
        elif target and "did you mean" not in hint and not target.startswith("showattendtell."):
            hint += f"; {target} has no such argument: add it, or choose an option of {path}= without it"
        yield f"there is no setting {leaf}{hint}"


def _similar(setting: str, known: Sequence[str]) -> str:
    """Return a hint at similar names: the same last name anywhere, or a similar one in the same node."""
    path, _, last = setting.rpartition(".")
    by_last_name = defaultdict[str, list[str]](list)
    for name in known:
        by_last_name[name.rpartition(".")[2]].append(name)
    if last in by_last_name:
        return f"; did you mean {' or '.join(map(repr, sorted(by_last_name[last])))}?"
    siblings = [name for name, full_names in by_last_name.items() if join(path, name) in full_names]
    hint = did_you_mean(last, siblings) if siblings else ""
    if "did you mean" not in hint and (close := get_close_matches(last, by_last_name, 1, 0.75)):
        return f"; did you mean {by_last_name[close[0]][-1]!r}?"
    return hint


def leaves(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (setting, value) for every value in a node of a configuration as plain data."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(join(path, str(key)), value)
    else:
        yield path, node


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


ADVICE = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
}
"""What to do about an error of the system, by its number."""

USER_ERRORS = (UserError, HydraException, OmegaConfBaseException, OSError, RecursionError)
"""Exceptions that are reported without a traceback."""


def sentence(error: Exception) -> str:
    """Return what is wrong and what to do; for an unexpected exception its type and the first line of its message."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return first_line(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename} does not exist"
    if isinstance(error, OSError):  # errors of a network have neither a file nor a number
        file = f"{error.filename}: " if error.filename else ""
        advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
        return f"{file}{error.strerror or first_line(error)}{advice}"
    if isinstance(error, RecursionError):
        return "an argument or a file is nested too deeply; shorten it (--debug shows where)"
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Report any error of reading files that are trusted like code, whose content is not checked, as a `UserError`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, USER_ERRORS) and not isinstance(error, RecursionError):
            raise
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        hint = "restore a copy of it, or start another; --debug shows where"
        raise UserError(f"{what} cannot be read ({sentence(cause)}); {hint}") from error


DEBUG = "SHOWATTENDTELL_DEBUG"  # the environment variable that `--debug` sets to 1, for child processes too


def error_message(error: Exception) -> str:
    """Return `error: ...` for the user; after its traceback with `--debug`. Only the traceback of an unexpected one."""
    is_known = isinstance(error, USER_ERRORS)
    lines = [f"error: {sentence(error)}\n"] if is_known else []
    if os.environ.get(DEBUG) == "1" or not is_known:
        # the first cause first, with those that `from None` hides
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
            chain.append(cause)
        traces = ["".join(traceback.format_exception(exception, chain=False)) for exception in reversed(chain)]
        lines.insert(0, "\n".join(traces))
    return "".join(lines)
