"""In which settings two configurations of training differ."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from showattendtell.config.check import leaves, shown
from showattendtell.same_training import may_differ

DEFAULT = "its default"
"""Stands for a setting that a configuration does not state."""


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
