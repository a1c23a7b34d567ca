"""By which figure the trials of a search are compared."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from showattendtell.config.check import shown
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import beside_a_command, compose
from showattendtell.errors import UserError


def common_selection(searched: Mapping[str, BaseDistribution], fixed: Mapping[str, Any]) -> str:
    """The figure that all trials go by; an experiment, a variant, a reward or the last stage may choose it, and no
    setting of a part.

    Args:
        searched: settings with the values that trials may have.
        fixed: settings of all trials.

    Raises `UserError` where trials go by different ones.
    """
    first = {**fixed, **{key: _values(space)[0] for key, space in searched.items()}}
    for key in [key for key in searched if "." not in key]:
        found = {_selection_of({**first, key: value}): f"{key}={value}" for value in _values(searched[key])}
        if len(found) > 1:
            told = " and ".join(f"{selection} with {choice}" for selection, choice in found.items())
            raise UserError(
                f"trials would go by different figures, {told}, and none were the best; give selection=NAME"
            )
    return _selection_of(first)


def _selection_of(settings: Mapping[str, Any]) -> str:
    """That of one run, or of the last of its stages."""
    arguments = [f"{key}={value}" for key, value in settings.items()]
    with beside_a_command():
        config, _ = compose("train", arguments)
        if config.stages:
            *_, last = config.stages.values()
            config, _ = compose("train", check_command("train", [*arguments, *last, "stages=null"], complete=False))
    return str(config.selection)


def _values(space: BaseDistribution) -> list[str]:
    """All that are choices, or one of a range."""
    if isinstance(space, CategoricalDistribution):
        return [shown(choice) for choice in space.choices]
    assert isinstance(space, IntDistribution | FloatDistribution)
    return [shown(space.low)]
