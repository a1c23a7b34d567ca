"""Every YAML file of conf/: it composes, it is true of the code, and what it says is what a run gets."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from extension_cases import cases
from omegaconf import OmegaConf
from slow_cases import slow_after

from showattendtell.config.command_line import config_folders
from showattendtell.config.compose import compose
from showattendtell.config.instantiate import locate
from showattendtell.config.names import ALIASES
from showattendtell.errors import UserError

FOLDERS = [*map(Path, config_folders())]
CONF = FOLDERS[0]


def found(pattern: str) -> list[Path]:
    """The files of the core and of the extensions."""
    return sorted(file for folder in FOLDERS for file in folder.glob(pattern))


ROOTS = sorted(file.stem for file in found("*.yaml"))
BUILT_ON = ["base", "variant/released", "experiment/paper/dropout"]
"""Folders of what other options include, and that nobody chooses from."""


def options() -> dict[str, dict[str, Path]]:
    """The options of every group: the files of its folder, and whole recipes in folders below it."""
    groups: dict[str, dict[str, Path]] = {}
    for file in found("*/**/*.yaml"):
        folder = next(folder for folder in FOLDERS if file.is_relative_to(folder))
        path = file.relative_to(folder).with_suffix("")
        if str(path.parent) in BUILT_ON:
            continue
        recipe = file.read_text().startswith("# @package _global_")
        group = path.parts[0] if recipe else str(path.parent)
        groups.setdefault(group, {})[str(path.relative_to(group))] = file
    chosen_by_other_settings = {"hydra", "hydra/sweeper", "metric", "format", "captioning", "measure"}
    return {group: options for group, options in groups.items() if group not in chosen_by_other_settings}


def choices() -> list[list[str]]:
    """Choices of every option: alone if its group chooses options of others, else with one of each group."""
    alone, together = list[list[str]](), list[list[str]]()
    for group, files in options().items():
        chosen = [f"{group}={option}" for option in files]
        chooses = any("override /" in file.read_text() for file in files.values()) or group == "attention"
        together += [[]] * (0 if chooses else len(chosen) - len(together))
        if chooses:
            alone += [[choice] for choice in chosen]
        else:
            together = [[*row, *chosen[n : n + 1]] for n, row in enumerate(together)]
    needed = [[other for group, other in cases("CHOSEN_WITH").items() if group in str(row)] for row in together]
    return [*([*row, *others] for row, others in zip(together, needed, strict=True)), *alone]


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


@pytest.mark.parametrize("chosen", slow_after(16, choices()), ids=" ".join)
def test_every_option_composes_with_training_and_has_no_faults(chosen: list[str]):
    """What a recipe sets is what the run gets."""
    config = compose("train", chosen)
    assert "_target_" in config.decoder
    group, _, option = chosen[0].partition("=")
    if group in ("dataset", "experiment"):
        recipe = read(CONF / group / f"{option}.yaml")
        stated = {setting: value for setting, value in leaves(recipe) if "${" not in str(value)}
        assert {setting: OmegaConf.select(config, setting) for setting in stated} == stated


@pytest.mark.parametrize("root", ROOTS)
def test_every_root_composes_and_lacks_only_what_the_user_must_give(root: str):
    config = compose(root, complete=False)
    assert not {*config} & {*ALIASES}  # no short name hides a setting
    missing = OmegaConf.missing_keys(config)
    if missing:
        with pytest.raises(UserError) as error:
            compose(root)
        assert [setting for setting in missing if f"{setting} is not set" not in str(error.value)] == []


OWN = {"seed", "cache", "init_from", "monitor", "brevity_penalty", "references", "checkpoint", "split", "output"}
OWN |= {"device", "images"}
"""Settings of a command itself, which are no parts of it."""


def test_every_target_exists_and_takes_the_settings_next_to_it():
    others = {"defaults", "hydra", "server", *compose("train", []), *compose("evaluate", complete=False)} - OWN
    for file in found("**/*.yaml"):
        for part in parts(read(file)):
            settings = {name: value for name, value in part.items() if not name.startswith("_") and name not in others}
            bound = inspect.signature(locate(part["_target_"])).bind_partial(**settings)
            assert bound.kwargs.keys() | bound.arguments.keys() >= settings.keys(), file
