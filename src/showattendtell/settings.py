"""Settings as plain data: their types and accepted values, the nodes that hold them, and calls as configuration."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from inspect import Parameter, signature
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError, ValidationInfo
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticCustomError

from showattendtell.errors import UserError, did_you_mean

__all__ = ["NonNegativeInt", "PositiveInt"]  # re-exported


def is_url(text: str) -> bool:
    """Return whether a text is a URL that can be fetched, and not a path."""
    return text.lower().startswith(("http://", "https://"))


def _absolute(path: str) -> str:
    return path if path.startswith("~") or is_url(path) else os.path.abspath(path)


def _absolute_if_found(path: str, about: ValidationInfo) -> str:
    root = os.path.expanduser(str((about.context or {}).get("root") or ""))  # unchecked
    is_in_root = root and os.path.exists(os.path.join(root, path))
    return _absolute(path) if os.path.exists(path) and not is_in_root else path


def _check_inches(width: float) -> float:
    """Return a width; its unit is named if it looks like pixels."""
    if not 0.5 <= width <= 20:
        raise PydanticCustomError("inches", "should be a width in inches, 0.5 to 20")
    return width


Inches = Annotated[float, AfterValidator(_check_inches)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]
"""That of a softmax; numbers of float32 divided by a smaller one would be infinite."""
Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
ImageLength = Annotated[int, Field(gt=0, le=1024)]
Dpi = Annotated[int, Field(gt=0, le=1200)]
Count = Annotated[int, Field(gt=0, le=10_000)]
"""A number of words of a caption, or of captions of an image; more would fill the memory."""
Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text, AfterValidator(_absolute)]
"""A path. It means where the command was typed, so that the absolute one is stored."""
Places = Place | Annotated[Sequence[Place], Field(min_length=1)]
Source = Annotated[Text, AfterValidator(_absolute_if_found)]
"""A path, or a name within the setting `root`, of a bundled model, on the hub or the like."""
Texts = Text | Annotated[Sequence[Text], Field(min_length=1)]
"""One text, or a list of at least one."""


class PictureStyle(NamedTuple):
    """How a picture shows attention maps; `ImageCaptions.plot` describes the arguments."""

    width: Inches | None = None
    dpi: Dpi | None = None
    colormap: Text | None = None
    words: Sequence[Text] | None = None
    rows: PositiveInt | None = None


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]


@dataclass(frozen=True)
class Node:
    """A part of a configuration that `build` makes an object of.

    Attributes:
        target: import path of a class or function.
        arguments: its arguments as plain data; a mapping with a `_target_` is a part of its own.
        path: the setting that it stands in, for messages.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: str = field(default="", compare=False)

    def changed(self, **arguments: Any) -> "Node":
        """Return a copy with those of the arguments that are not None."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return replace(self, arguments={**self.arguments, **given})

    def __str__(self) -> str:
        """Return the call as Python writes it, without the module and arguments that are None."""
        return _written({"_target_": self.target, **self.arguments})


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if not isinstance(value, Mapping):
        return str(value)
    name = value.get("_target_", "").rpartition(".")[2]
    given = {key: part for key, part in value.items() if part is not None and key not in ("_target_", "_partial_")}
    return f"{name}({', '.join(f'{key}={_written(part)}' for key, part in given.items())})"


Nodes = Mapping[str, Node | None]
"""Parts by name; None for one that was switched off."""


def is_part(annotation: Any) -> bool:
    """Return whether a setting is a part, or a group of parts, and has no value of its own."""
    return annotation in (Node, Nodes) or Node in get_args(annotation)


MAY_DIFFER = """cache tags dataset.root data.num_workers features.workers logger checkpoint_interval_minutes
callbacks.confidence callbacks.progress_bar callbacks.learning_rate_monitor callbacks.dashboards callbacks.epoch_report
callbacks.step_metrics callbacks.trial_pruning callbacks.worker_shutdown trainer.accelerator
encoder.gradient_checkpointing"""
"""Settings of paths, workers, devices and loggers, with all settings below them. They do not change what is learned."""


def short_metric(monitor: str) -> str:
    """Return bleu4, cider or loss for a metric that may have its name in `metrics.csv`, such as val/loss_per_word."""
    return monitor.removeprefix("val/").removesuffix("_per_word")


def metric_mode(monitor: str) -> Literal["min", "max"]:
    """Return whether the best value of the metric is the smallest or the largest."""
    return "min" if short_metric(monitor) == "loss" else "max"


def may_differ(setting: str) -> bool:
    """Return whether a resumed run may have another value of the setting than the run had before."""
    return any(setting == name or setting.startswith(f"{name}.") for name in MAY_DIFFER.split())


def describe_call(call: Any) -> dict[str, Any] | None:
    """Return the node of a configuration that repeats a call, as plain data.

    Args:
        call: a class, a function, or a `functools.partial` of one, whose arguments are plain data, paths, classes or
            functions.

    Returns:
        `{"_target_": "module.name", ...}` with the arguments; None if another process cannot import the class or
        function, and for any other object, such as an instance.
    """
    function, arguments = call, {}
    if isinstance(call, partial):
        function = call.func
        arguments = {**signature(function).bind_partial(*call.args).arguments, **call.keywords}
    name = getattr(function, "__qualname__", "<instance>")
    if "<" in name or function.__module__ == "__main__":
        return None
    node: dict[str, Any] = {"_target_": f"{function.__module__}.{name}"}
    for argument, value in arguments.items():
        if callable(value):
            inner = describe_call(value)
            if inner is None:
                return None
            value = {**inner, "_partial_": True}
        elif isinstance(value, tuple | Path):  # the weights-only unpickler of torch refuses paths, JSON has no tuples
            value = list(value) if isinstance(value, tuple) else str(value)
        parameter = signature(function).parameters.get(argument)  # none of `**options`
        annotation = parameter.annotation if parameter else Any
        node[argument] = value if isinstance(annotation, str) else validated(value, annotation)[0]
    return node


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def leaves(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (setting, value) for every value in a node of a configuration as plain data."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(join(path, str(key)), value)
    else:
        yield path, node


def all_values(node: Any) -> list[Any]:
    """Return plain data and all data in it, the keys of mappings included."""
    found = [node]
    for value in found:
        if isinstance(value, Mapping):
            found += chain(value, value.values())
        elif isinstance(value, list | tuple):
            found += value
    return found


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""A control character, which is a command to a terminal."""


def has_control(content: Any) -> bool:
    """Return whether a text in data of JSON has control characters."""
    return any(isinstance(value, str) and CONTROL.search(value) for value in all_values(content))


def format_value(value: Any) -> str:
    """Return a value as the command line accepts it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


REASONS = {
    "missing": "should have more values",
    "string_pattern_mismatch": "should be an import path such as mypackage.Brevity",  # the only texts with a pattern
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "sequence_str": "should be a list",
    "is_instance_of": "should be a list",  # Sequence is the only class in an annotation of a setting
}
"""What a value should be, by pydantic's type of error. Other types have pydantic's message."""


adapter_of = cache(TypeAdapter[Any])


def validated(value: Any, annotation: Any, root: str | None = None) -> tuple[Any, list[str]]:
    """Return a value with the absolute paths of `Place` and `Source`, and what it should be if its annotation does not
    allow it.

    Args:
        root: the folder where a `Source` is looked for first.
    """
    try:
        return adapter_of(annotation).validate_python(value, strict=True, context={"root": root}), []
    except PydanticSchemaGenerationError:
        return value, []
    except ValidationError as error:
        faults = error.errors()
    if isinstance(value, list) and any(fault["type"] == "tuple_type" for fault in faults):
        return value, validated(tuple(value), annotation)[1]  # YAML has no tuples
    reasons = [REASONS.get(fault["type"], fault["msg"]) for fault in faults]
    return value, [re.sub(r"^\w+ should", "should", reason) for reason in reasons]


def as_meant(value: Any, annotation: Any, root: str | None) -> Any:
    """Return a value as its annotation asks for it: a single one as a list where only a list is allowed, and paths as
    `validated` returns them."""
    meant, faults = validated(value, annotation, root)
    listed, others = validated([value], annotation, root) if faults else (meant, [])
    return value if others else listed


def value_errors(path: str, value: Any, annotation: Any) -> Iterator[str]:
    """Yield an error message if a setting or an argument has a value that its annotation does not allow."""
    if faults := dict.fromkeys(validated(value, annotation)[1]):
        first, *others = faults
        reasons = [first, *(fault.removeprefix("should be ") for fault in others)]
        text = format_value(value)
        is_text = isinstance(value, int | float) and not validated(text, annotation)[1]
        hint = f"; quote a text of digits: '{path}=\"{text}\"'" if is_text else ""
        yield f"{path}={text} {' or '.join(reasons)}{hint}"


def check_values(values: Mapping[str, Any], annotations: Mapping[str, Any]) -> None:
    """Raise `UserError` unless each value is one that the annotation of its name allows, if it has one."""
    known = values.keys() & annotations.keys()
    if errors := [error for name in known for error in value_errors(name, values[name], annotations[name])]:
        raise UserError("\n  ".join(sorted(errors)))


def checked(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Decorate a function or an `__init__` to check its arguments like settings of the command line."""
    parameters = signature(function).parameters
    is_open = Parameter.VAR_KEYWORD in [parameter.kind for parameter in parameters.values()]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        unknown = next((key for key in kwargs if key not in parameters), None)
        if unknown and not is_open:
            made = type(args[0]) if function.__name__ == "__init__" else function  # a subclass passes its options on
            names = {*signature(made).parameters, *parameters} - {"self"}
            raise UserError(f"{made.__qualname__} has no argument {unknown}{did_you_mean(unknown, names)}")
        given = signature(function).bind(*args, **kwargs).arguments
        check_values(given, get_type_hints(function, include_extras=True))
        return function(*args, **kwargs)

    return call
