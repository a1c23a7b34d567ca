"""Types of settings with their accepted values, settings that a resumed run may change, and calls as configuration."""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

__all__ = ["NonNegativeFloat", "NonNegativeInt", "PositiveFloat", "PositiveInt"]  # re-exported

Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
ImageLength = Annotated[int, Field(gt=0, le=2048)]
Text = Annotated[str, Field(min_length=1)]
Texts = Text | Annotated[Sequence[Text], Field(min_length=1)]
"""One text, or a list of at least one."""

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]

MAY_DIFFER = {
    *("cache", "dataset.root", "data.num_workers", "features.workers", "logger"),
    "checkpoint_interval_minutes",
    *("callbacks.gradient_norm", "callbacks.progress_bar", "callbacks.learning_rate_monitor", "callbacks.dashboards"),
    *("callbacks.training_metrics", "callbacks.epoch_times", "callbacks.epoch_report", "callbacks.step_metrics"),
    *("callbacks.trial_pruning", "callbacks.worker_shutdown"),
    *("trainer.accelerator", "encoder.gradient_checkpointing"),
}
"""Settings of paths, workers, devices and loggers, with all settings below them. They do not change what is learned."""


def is_url(text: str) -> bool:
    """Return whether a text is a URL that can be fetched, and not a path."""
    return text.lower().startswith(("http://", "https://"))


def may_differ(setting: str) -> bool:
    """Return whether a resumed run may have another value of the setting than the run had before."""
    return any(setting == name or setting.startswith(f"{name}.") for name in MAY_DIFFER)


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
        arguments = signature(function).bind_partial(*call.args, **call.keywords).arguments
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
        node[argument] = value
    return node
