"""Every YAML file of conf/: it composes, it is true of the code, and what it says is what a run gets."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from extension_cases import cases
from omegaconf import OmegaConf

from showattendtell.config.command_line import config_folders
from showattendtell.config.compose import compose
from showattendtell.config.instantiate import locate
from showattendtell.errors import UserError

FOLDERS = [*map(Path, config_folders())]
CONF = FOLDERS[0]


def found(pattern: str) -> list[Path]:
    """The files of the core and of the extensions."""
    return sorted(file for folder in FOLDERS for file in folder.glob(pattern))


ROOTS = sorted(file.stem for file in found("*.yaml"))
BUILT_ON = ["base", "variant/released", "experiment/paper/dropout"]
"""Folders of what other options include, and that nobody chooses from."""


def options() -> dict[str, list[str]]:
    """The options of every group: the files of its folder, and whole recipes in folders below it."""
    groups: dict[str, list[str]] = {}
    for file in found("*/**/*.yaml"):
        folder = next(folder for folder in FOLDERS if file.is_relative_to(folder))
        path = file.relative_to(folder).with_suffix("")
        if str(path.parent) in BUILT_ON:
            continue
        recipe = file.read_text().startswith("# @package _global_")
        group = path.parts[0] if recipe else str(path.parent)
        groups.setdefault(group, []).append(str(path.relative_to(group)))
    for group in (
        "hydra",
        "hydra/sweeper",
        "metric",
        "format",
        "captioning",
        "measure",
    ):  # these are chosen by other settings
        groups.pop(group, None)
    return groups


def whole(choice: str) -> list[str]:
    """The arguments with which an option can be chosen."""
    return [choice, *(other for group, other in cases("CHOSEN_WITH").items() if choice.startswith(group))]


GROUPS = options()
CHOICES = [f"{group}={option}" for group, options in GROUPS.items() for option in options]
RECIPES = [choice for choice in CHOICES if choice.startswith(("dataset=", "experiment="))]


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """Every node that has a `_target_`."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from parts(value)


def read(file: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(file))


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(setting, value) of everything that a YAML file sets."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        elif key != "defaults":
            yield f"{path}{key}", value


@pytest.mark.parametrize("choice", CHOICES)
def test_every_option_composes_with_training_and_has_no_faults(choice: str):
    """What a recipe sets is what the run gets."""
    config = compose("train", whole(choice))
    assert "_target_" in config.decoder
    if choice in RECIPES:
        name = f"{choice.replace('=', '/')}.yaml"
        recipe = read(next(root / name for root in FOLDERS if (root / name).is_file()))
        stated = {setting: value for setting, value in leaves(recipe) if "${" not in str(value)}
        assert {setting: OmegaConf.select(config, setting) for setting in stated} == stated


@pytest.mark.parametrize("root", ROOTS)
def test_every_root_composes_and_lacks_only_what_the_user_must_give(root: str):
    config = compose(root, complete=False)
    for setting in OmegaConf.missing_keys(config):
        with pytest.raises(UserError, match=f"{setting} is not set"):
            compose(root)


PARTS = {"defaults", "hydra", "server", *compose("train", []), *compose("evaluate", complete=False)} - {
    *("seed", "cache", "init_from", "monitor", "brevity_penalty", "references"),
    *("checkpoint", "split", "output", "device", "images"),
}
"""Keys of a command's YAML that are not settings of its own."""


def test_every_target_exists_and_takes_the_settings_next_to_it():
    for file in found("**/*.yaml"):
        for part in parts(read(file)):
            settings = {name: value for name, value in part.items() if not name.startswith("_") and name not in PARTS}
            bound = inspect.signature(locate(part["_target_"])).bind_partial(**settings)
            assert bound.kwargs.keys() | bound.arguments.keys() >= settings.keys(), file
