"""Check a composed configuration against the signatures of its targets, and report all errors at once."""

import errno
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from showattendtell.config.signatures import SignatureError, read_signature
from showattendtell.errors import UserError, did_you_mean, first_line
from showattendtell.settings import format_value as format_value
from showattendtell.settings import value_errors

TARGET = "_target_"


def validate(config: DictConfig, complete: bool = True) -> list[str]:
    """Return an error message for every setting that is missing, unknown to its target, or of the wrong type or range.

    With `complete=False` a missing setting is not an error.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(config)) if complete else []
        errors = _node_errors("", OmegaConf.to_container(config, resolve=True))
        return [*(f"{key} is not set; give it as {key}=..." for key in missing), *errors]
    except OmegaConfBaseException as error:
        return [f"{error.full_key}: {first_line(error)}"]


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


def _node_errors(path: str, node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if TARGET in node:
            yield from _target_errors(path, node)
        for key, value in node.items():
            yield from _node_errors(join(path, str(key)), value)


def _target_errors(path: str, node: Mapping[str, Any]) -> Iterator[str]:
    try:
        signature = read_signature(str(node[TARGET]))
    except SignatureError as error:
        yield f"{join(path, TARGET)}={format_value(node[TARGET])}: {error}"
        return
    for key, value in node.items():
        if key.startswith("_") or value == "???":
            continue
        if key in signature.parameters:
            annotation = signature.parameters[key].annotation
            if annotation is not None and not (isinstance(value, Mapping) and TARGET in value):
                yield from value_errors(join(path, key), value, annotation)
        elif path and not signature.open:
            hint = did_you_mean(key, signature.parameters) if signature.parameters else ""
            if not str(node[TARGET]).startswith("showattendtell."):
                hint += f"; {node[TARGET]} has no such argument: add it, or choose an option of {path}= without it"
            yield f"there is no setting {path}.{key}{hint}"


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

USER_ERRORS = (UserError, HydraException, OSError, RecursionError)  # exceptions that are reported without a traceback


def sentence(error: Exception) -> str:
    """Return what is wrong and what to do; for an unexpected exception its type and the first line of its message."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, HydraException):
        return first_line(error)
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, RecursionError):
        return "an argument or a file is nested too deeply; shorten it (--debug shows where)"
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Report any error of reading files that are trusted like code, whose content is not checked, as a `UserError`."""
    try:
        yield
    except USER_ERRORS:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        hint = "restore a copy of it, or start another; --debug shows where"
        raise UserError(f"{what} cannot be read ({sentence(cause)}); {hint}") from error


def _system_error(error: OSError) -> str:
    """Return the file and the message of the system, with advice if there is any; errors of a network have neither."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename} does not exist"
    file = f"{error.filename}: " if error.filename else ""
    advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
    return f"{file}{error.strerror or first_line(error)}{advice}"


DEBUG = "SHOWATTENDTELL_DEBUG"  # the environment variable that `--debug` sets to 1, for child processes too


def error_message(error: Exception) -> str:
    """Return `error: ...` for the user; after its traceback with `--debug`. Only the traceback of an unexpected one."""
    is_known = isinstance(error, USER_ERRORS)
    trace = _full_traceback(error) if os.environ.get(DEBUG) == "1" or not is_known else ""
    return trace + (f"error: {sentence(error)}\n" if is_known else "")


def _full_traceback(error: BaseException) -> str:
    """Return the traceback of an exception and its causes, the first cause first, with those that `from None` hides."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    return "\n".join("".join(traceback.format_exception(exception, chain=False)) for exception in reversed(chain))
