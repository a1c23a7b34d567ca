"""In which settings two configurations of training differ."""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from showattendtell.config.check import leaves, shown
from showattendtell.config.signature import read_signature
from showattendtell.errors import listed
from showattendtell.same_training import may_differ

DEFAULT = "its default"
"""Stands for a setting that a configuration does not state."""

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
"""Settings of the model that may be otherwise where it gets another one's weights."""


def plain_settings(config: DictConfig) -> dict[str, Any]:
    """A training configuration without what only says from where it goes on, and which trainings follow each other."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return {name: value for name, value in settings.items() if name not in ("resume", "stages")}


def find_differences(config: DictConfig, other: Mapping[str, Any]) -> list[str]:
    """`setting=VALUE instead of VALUE` for each that the configuration has otherwise than the plain settings of another
    run, but for those that may differ in a run that goes on."""
    ours, theirs = dict(leaves("", plain_settings(config))), dict(leaves("", other))
    names = [name for name in {**theirs, **ours} if ours.get(name, DEFAULT) != theirs.get(name, DEFAULT)]
    return [
        f"{name}={shown(ours.get(name, DEFAULT))} instead of {shown(theirs.get(name, DEFAULT))}"
        for name in names
        if not may_differ(name)
    ]


def model_differences(config: DictConfig, other: Mapping[str, Any]) -> list[str]:
    """`setting=VALUE` for each that shapes the model and is otherwise in the plain settings of another, of those that
    both have, those that both leave to the code among them."""
    ours, theirs = _of_the_model(plain_settings(config)), _of_the_model(other)
    names = [name for name in theirs if name in ours and name.rpartition(".")[2] not in HARMLESS]
    return [f"{name}={shown(theirs[name])}" for name in names if ours[name] != theirs[name]]


def trained_with(differences: Sequence[str], choices: Mapping[str, str]) -> str:
    """What a model that does not fit another was trained with, in words: its differences in settings, or else the
    options that shape it."""
    groups = [f"{group}={option}" for group, option in choices.items() if group.partition("/")[0] in MODEL]
    return listed(list(differences) or groups, shown=6) or "another encoder"


def _of_the_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for part in MODEL for name, value in leaves(part, {**_defaults(settings[part]), **settings[part]})
    }


def _defaults(part: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the part's class that are plain values."""
    values = {}
    for name, parameter in read_signature(part["_target_"]).parameters.items():
        if parameter.default is not None:
            with suppress(ValueError):
                values[name] = ast.literal_eval(parameter.default)
    return values
