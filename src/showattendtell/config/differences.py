"""Compare the settings of two training configurations."""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from showattendtell.config.signatures import read_signature
from showattendtell.config.validation import format_value, leaves
from showattendtell.errors import listed
from showattendtell.settings import may_differ

DEFAULT = "its default"
"""The value that is shown for a setting that a configuration does not contain."""

MODEL = ("encoder", "attention", "decoder")
"""The groups of settings that shape the model."""

HARMLESS = {
    "weights",
    "trainable",
    "frozen_stride",
    "learning_rate",
    "recompute",
    "_target_",
    "dropout",
    "dropout_places",
}
"""Model settings that may differ when weights are loaded from another model."""


def plain_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training configuration as plain data, without `resume` and `stages`."""
    return {name: value for name, value in plain(config).items() if name not in ("resume", "stages")}


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain data."""
    settings: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    return dict(settings)


def find_differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return `setting=VALUE instead of VALUE` for each setting that differs between the configuration and the
    plain settings of another run, except settings that may change when a run is resumed."""
    ours, theirs = dict(leaves("", plain_settings(config))), dict(leaves("", other))
    names = [name for name in {**theirs, **ours} if ours.get(name, DEFAULT) != theirs.get(name, DEFAULT)]
    return [
        f"{name}={format_value(ours.get(name, DEFAULT))} instead of {format_value(theirs.get(name, DEFAULT))}"
        for name in names
        if not may_differ(name)
    ]


def model_differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return `setting=VALUE`, with the value in `other`, for each model setting that both have and that differs.
    Defaults in the code count as settings."""
    ours, theirs = _of_the_model(plain_settings(config)), _of_the_model(other)
    names = [name for name in theirs if name in ours and name.rpartition(".")[2] not in HARMLESS]
    return [f"{name}={format_value(theirs[name])}" for name in names if ours[name] != theirs[name]]


def trained_with(differences: Sequence[str], choices: Mapping[str, str]) -> str:
    """Describe what an incompatible model was trained with: the settings that differ, or else the options of its config
    groups."""
    groups = [f"{group}={option}" for group, option in choices.items() if group.partition("/")[0] in MODEL]
    return listed(list(differences) or groups, shown=6) or "another encoder"


def _of_the_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for part in MODEL for name, value in leaves(part, {**_defaults(settings[part]), **settings[part]})
    }


def _defaults(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the part's class that are literals."""
    values = {}
    for name, parameter in read_signature(part["_target_"]).parameters.items():
        if parameter.default is not None:
            with suppress(ValueError):
                values[name] = ast.literal_eval(parameter.default)
    return values
