"""Holds a composed configuration against the signatures of what it will call, and tells all faults at once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from showattendtell.config.signature import Parameter, SignatureError, read_signature
from showattendtell.errors import UserError, did_you_mean

TARGET = "_target_"


def find_faults(config: DictConfig, complete: bool = True) -> list[str]:
    """A sentence for every setting that is missing, unknown to what it configures, or of the wrong type or range.

    Unless it is to be `complete`, a missing one is no fault.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(config)) if complete else []
        faults = _node_faults("", OmegaConf.to_container(config, resolve=True))
        return [*(f"{key} is not set; give it as {key}=..." for key in missing), *faults]
    except OmegaConfBaseException as fault:
        return [f"{fault.full_key}: {str(fault.msg).splitlines()[0]}"]


def raise_all(faults: Sequence[str]) -> None:
    """One `UserError` that tells all the faults, if there are any."""
    if faults:
        raise UserError(faults[0] if len(faults) == 1 else "\n  ".join([f"{len(faults)} settings are wrong:", *faults]))


def find_targets(node: Any) -> Iterator[str]:
    """Every `_target_` in a configuration as plain data."""
    if isinstance(node, Mapping):
        yield from ([str(node[TARGET])] if TARGET in node else [])
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for value in inner:
        yield from find_targets(value)


def _node_faults(path: str, node: Any) -> Iterator[str]:
    if not isinstance(node, Mapping):
        return
    if TARGET in node:
        yield from _target_faults(path, node)
    for key, value in node.items():
        yield from _node_faults(join(path, str(key)), value)


def _target_faults(path: str, node: Mapping[str, Any]) -> Iterator[str]:
    try:
        signature = read_signature(str(node[TARGET]))
    except SignatureError as fault:
        yield f"{join(path, TARGET)}={shown(node[TARGET])}: {fault}"
        return
    for key, value in node.items():
        if key.startswith("_") or value == "???":
            continue
        if key in signature.parameters:
            yield from _value_faults(join(path, key), value, signature.parameters[key])
        elif path and not signature.open:
            yield f"there is no setting {path}.{key}{did_you_mean(key, signature.parameters)}"


def _value_faults(path: str, value: Any, parameter: Parameter) -> Iterator[str]:
    if parameter.annotation is None or (isinstance(value, Mapping) and TARGET in value):
        return
    try:
        accepts = TypeAdapter(parameter.annotation).validate_python
    except PydanticSchemaGenerationError:
        return
    try:
        accepts(value, strict=True)
    except ValidationError as fault:
        if isinstance(value, list) and _is_accepted(accepts, tuple(value)):  # YAML has no tuples
            return
        if _is_accepted(accepts, [value]):
            yield f"{path}={shown(value)} should be a list: {path}=[{shown(value)}]"
            return
        reasons = dict.fromkeys(error["msg"].removeprefix("Input ") for error in fault.errors())
        yield f"{path}={shown(value)} {' or '.join(reasons)}"


def _is_accepted(accepts: Any, value: Any) -> bool:
    try:
        accepts(value, strict=True)
    except ValidationError:
        return False
    return True


def leaves(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """(setting, value) of all that stands in a node of a configuration as plain data."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(join(path, str(key)), value)
    else:
        yield path, node


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
