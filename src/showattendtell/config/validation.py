"""Check a composed configuration against the signatures of its targets, and report all errors at once."""

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import ErrorDetails

from showattendtell.config.signatures import SignatureError, read_signature
from showattendtell.errors import UserError, did_you_mean, first_line

TARGET = "_target_"


def validate(config: DictConfig, complete: bool = True) -> list[str]:
    """Return an error message for every setting that is missing, unknown to its target, or of the wrong type or range.

    With `complete=False` a missing setting is no error.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(config)) if complete else []
        faults = _node_faults("", OmegaConf.to_container(config, resolve=True))
        return [*(f"{key} is not set; give it as {key}=..." for key in missing), *faults]
    except OmegaConfBaseException as fault:
        return [f"{fault.full_key}: {first_line(fault)}"]


def raise_errors(faults: Sequence[str]) -> None:
    """Raise one `UserError` that lists all errors, if there are any."""
    if faults:
        raise UserError(faults[0] if len(faults) == 1 else "\n  ".join([f"{len(faults)} settings are wrong:", *faults]))


def find_targets(node: Any) -> Iterator[str]:
    """Yield every `_target_` in a configuration as plain data."""
    if isinstance(node, Mapping):
        yield from ([str(node[TARGET])] if TARGET in node else [])
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else ()
    for value in inner:
        yield from find_targets(value)


def _node_faults(path: str, node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if TARGET in node:
            yield from _target_faults(path, node)
        for key, value in node.items():
            yield from _node_faults(join(path, str(key)), value)


def _target_faults(path: str, node: Mapping[str, Any]) -> Iterator[str]:
    try:
        signature = read_signature(str(node[TARGET]))
    except SignatureError as fault:
        yield f"{join(path, TARGET)}={format_value(node[TARGET])}: {fault}"
        return
    for key, value in node.items():
        if key.startswith("_") or value == "???":
            continue
        if key in signature.parameters:
            annotation = signature.parameters[key].annotation
            if annotation is not None and not (isinstance(value, Mapping) and TARGET in value):
                yield from _value_faults(join(path, key), value, annotation)
        elif path and not signature.open:
            hint = did_you_mean(key, signature.parameters) if signature.parameters else ""
            if not str(node[TARGET]).startswith("showattendtell."):
                hint += f"; {node[TARGET]} has no such argument: add it, or choose an option of {path}= without it"
            yield f"there is no setting {path}.{key}{hint}"


REASONS = {
    "too_short": "should have at least {min_length} values",
    "too_long": "should have at most {max_length} values",
    "missing": "should have more values",
    "string_too_short": "should not be empty",
    "string_type": "should be a text",
    "string_pattern_mismatch": "should be an import path such as mypackage.Brevity",  # the only texts with a pattern
    "none_required": "should be null",
    "is_instance_of": "should be a list",  # Sequence is the only class in an annotation of a setting
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be given as {{name:value}}",
    "mapping_type": "should be given as {{name:value}}",
}
"""What a value should be, by pydantic's type of error. Other types have pydantic's message."""


def _reason(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    kind = "string_too_short" if context.get("min_length") == 1 else error["type"]
    return REASONS[kind].format_map(context) if kind in REASONS else error["msg"].removeprefix("Input ")


def _either(reasons: Sequence[str]) -> str:
    """Join what a value should be: 'should be a text or a list'."""
    first, *others = dict.fromkeys(reasons)
    common = "should be " if first.startswith("should be ") else "should "
    return " or ".join([first, *(other.removeprefix(common).removeprefix("should ") for other in others)])


def _value_faults(path: str, value: Any, annotation: Any) -> Iterator[str]:
    def reasons(given: Any) -> list[str]:
        try:
            TypeAdapter(annotation).validate_python(given, strict=True)
        except PydanticSchemaGenerationError:
            return []
        except ValidationError as fault:
            return [_reason(error) for error in fault.errors()]
        return []

    wrong = reasons(value)
    if wrong and isinstance(value, list):  # which may also be meant as a tuple: YAML has none
        as_tuple = reasons(tuple(value))
        kinds = {REASONS["list_type"], REASONS["string_type"]}
        wrong = [reason for reason in wrong + as_tuple if reason not in kinds] if as_tuple else []
    if wrong:
        if not reasons([value]):
            yield f"{path}={format_value(value)} should be a list: {path}=[{format_value(value)}]"
        else:
            yield f"{path}={format_value(value)} {_either(wrong)}"


def leaves(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (setting, value) for every value in a node of a configuration as plain data."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(join(path, str(key)), value)
    else:
        yield path, node


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def format_value(value: Any) -> str:
    """Return a value as the command line accepts it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


FAULTS = (UserError, HydraException, OSError)  # exceptions that are reported without a traceback


def sentence(fault: Exception) -> str:
    """Return what is wrong and what to do; for an unexpected exception its type and the first line of its message."""
    if isinstance(fault, UserError):
        return str(fault)
    if isinstance(fault, HydraException):
        return first_line(fault)
    if isinstance(fault, OSError):
        where = f"{fault.filename}: " if fault.filename else ""
        return f"{where}{fault.strerror or fault}; is there room, and may it be written?"
    kind, line = type(fault).__name__, first_line(fault)
    return kind if line == kind else f"{kind}: {line}"


DEBUG = "SHOWATTENDTELL_DEBUG"  # the environment variable that `--debug` sets to 1, for child processes too


def error_message(fault: Exception) -> str:
    """Return `error: ...` for the user; after its traceback with `--debug`. Only the traceback of an unexpected one."""
    is_known = isinstance(fault, FAULTS)
    trace = _full_traceback(fault) if os.environ.get(DEBUG) == "1" or not is_known else ""
    return trace + (f"error: {sentence(fault)}\n" if is_known else "")


def _full_traceback(fault: BaseException) -> str:
    """Return the traceback of an exception and its causes, the first cause first, with those that `from None` hides."""
    chain = [fault]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    return "\n".join("".join(traceback.format_exception(each, chain=False)) for each in reversed(chain))
