"""The arguments of a command, as typed, in the form that Hydra accepts; and the folders with the options to choose."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.names import ALIASES
from showattendtell.errors import UserError
from showattendtell.runtime.files import expand_home
from showattendtell.settings import is_url

PACKAGE = Path(__file__).parents[1]

MULTIRUN = {"-m", "--multirun"}
COMPLETION = {"-sc", "--shell-completion"}
HELP = {"-h", "--help"}
FLAGS = {*MULTIRUN, *COMPLETION, *HELP, "--version", "--resolve"}
SHOW = {"-c", "--cfg"}
FLAGS_WITH_VALUE = {*SHOW, "-p", "--package"}
CONFIG_DIR = {"-cd", "--config-dir"}
"""The flags of Hydra's command line; any other `--name` is a setting."""

HOME = re.compile(r"(?<=[=\[,])~([\w.-]*(?=/)|(?=[,\]]|$))")
"""A home folder where shells do not expand it: after `=`, and in lists."""

PLAIN = r"[a-zA-Z0-9_./-]+"
"""A value that needs no quotes, neither for the shell nor for Hydra."""

TEXT = re.compile(r"[\w./\x80-\U0010ffff-][\w ./\x80-\U0010ffff-]*")
"""A text in a value. Hydra reads letters beyond ASCII only in quotes."""


def config_folders() -> list[str]:
    """Return the path of `conf/`, inside the package if installed as a wheel, else at the top of the checkout; then the
    folders with the options of extensions."""
    extensions = sorted(str(folder) for folder in PACKAGE.glob("extensions/*/conf"))
    for folder in (PACKAGE / "conf", PACKAGE.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return [str(folder), *extensions]
    raise UserError(f"the folder conf/ is missing next to {PACKAGE}; reinstall showattendtell")


def find_options(group: str, own: Iterable[str] = ()) -> list[str]:
    """Return the options of a config group, as `soft`, or `paper/coco` if they are in a subfolder.

    Args:
        own: the user's own folders of options.
    """
    roots = [Path(root, group) for root in (*config_folders(), *own)]
    return sorted([str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml")])


def read_option(group: str, option: str) -> DictConfig:
    """Return the settings of an option of the core or of an extension.

    Raises:
        UserError: there is no such option.
    """
    for folder in config_folders():
        file = Path(folder, group, f"{option}.yaml")
        if file.is_file():
            return DictConfig(OmegaConf.load(file))
    raise UserError(f"there is no {group}={option}; the extension that has it is not installed")


class Arguments(NamedTuple):
    """A command line in Hydra's form: flags, and overrides of which the last one of a name counts."""

    flags: list[str]
    overrides: list[str]

    @property
    def is_sweep(self) -> bool:
        is_multirun = MULTIRUN & {*self.flags} or "hydra.mode=MULTIRUN" in self.overrides
        return bool(is_multirun) or any(line.startswith("sweep=") for line in self.overrides)


def parse(command: str, arguments: Iterable[str], positional: str = "") -> Arguments:
    """Convert a command line to Hydra's form.

    The folders in `--config-dir` become the setting `hydra.searchpath`, which commands can pass on.

    Args:
        command: the name of the command, whose config groups count.
        positional: the setting that collects positional arguments as a list.

    Raises:
        UserError: an argument is no setting, positional arguments are also given by name, or an option of the user has
            the name of another.
    """
    arguments = [HOME.sub(lambda match: str(expand_home(match[0])), argument) for argument in arguments]
    if COMPLETION & set(arguments):  # the rest is for Hydra's completion, not for the configuration
        return Arguments(arguments, [])
    flags, settings = _split(arguments, positional)
    if own := searchpath(settings):
        check_names(own)
        settings.append(f"hydra.searchpath={as_value(f'file://{folder}' for folder in own)}")
    groups = find_groups(own)
    checkpoint = "resume" if command in ("train", "prepare") else "checkpoint"
    aliases = {**ALIASES, "ckpt_path": checkpoint, "format": "formats"}
    overrides: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        key = name.lstrip("+")
        key = aliases.get(key, key) if equals else key
        if equals and not value:
            raise UserError(f"{setting} has no value; give {setting}VALUE")
        if key.startswith("~"):
            raise UserError(f"{setting}: {key[1:]} cannot be removed; settings are given as name=value")
        if value == "None" and not os.path.exists(value):  # as programs in Python write it
            value = "null"
        if key == "hydra.job.chdir" and value.lower() != "false":
            raise UserError("hydra.job.chdir is not used: a path means where the command is typed; leave it out")
        group = key.replace(".", "/")
        if key != group in groups and not value.startswith("{"):
            raise UserError(f"{key} is a config group; choose it as {group}=NAME, or set {key}.NAME=value")
        overrides.pop(key, None)  # so that the last one also comes last
        # `+experiment=flickr8k` chooses what `experiment=flickr8k` does
        overrides[key] = f"{key if key in groups or is_setting(key) else name}{equals}{value}"
    return Arguments(flags, list(overrides.values()))


def is_setting(name: str) -> bool:
    """Return whether a name that is no config group is one of a setting, and not of Hydra's or of an option's place."""
    return not ("/" in name or "@" in name or name.startswith("hydra."))


def admit(overrides: Iterable[str]) -> None:
    """Let Hydra set what the YAML leaves to the default in the code. It refuses names that no configuration has, so
    that `base/typed`, which all commands include, gets the names in `overrides`; `validate` judges them later."""
    nodes: dict[str, Any] = {}
    groups = find_groups(searchpath(overrides))
    for line in overrides:
        name, _, value = line.partition("=")
        part, dot, _ = name.partition(".")
        if is_setting(name) and (dot or value.startswith("{")):
            nodes[part] = DictConfig({}, flags={"struct": False})
        elif is_setting(name) and name not in groups:
            nodes.setdefault(part, "???")  # which the value of the YAML replaces
    ConfigStore.instance().store("typed", nodes, "base", "_global_")


ConfigStore.instance().store("typed", {}, "base", "_global_")


def find_groups(own: Iterable[str]) -> set[str]:
    """Return the config groups, those in the user's own folders of options included."""
    return {option.rpartition("/")[0] for option in find_options("", own)}


def _split(arguments: Sequence[str], positional: str) -> Arguments:
    """Return Hydra's flags with their values, and the settings, of which `--name value` becomes `name=value`."""
    flags: list[str] = []
    settings: list[str] = []
    places: list[str] = []
    rest, is_sweep = iter(arguments), MULTIRUN & set(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in FLAGS:
            flags.append(argument)
        elif name.startswith("--") or name in FLAGS_WITH_VALUE | CONFIG_DIR:
            value = value if equals else next(rest, "")
            key = name[2:].replace("-", "_")
            if not value or value.startswith("--"):
                raise UserError(f"{name} has no value; give {name} VALUE or {name}=VALUE")
            if name in FLAGS_WITH_VALUE:
                flags += [name, value]
            elif name not in CONFIG_DIR:
                settings.append(f"{key}={value if value[0] in '[{' or is_sweep else as_value(value)}")
            else:
                settings.append(f"hydra.searchpath={as_value([value])}")
        elif positional and (not equals or os.path.exists(argument) or is_url(argument)):
            places.append(argument)
        else:
            if os.path.exists(value) and not os.path.exists(argument):
                value = as_value(value)  # as Lightning's `epoch=1-step=32.ckpt`, which Hydra cannot parse
            elif '"' not in value and "'" not in value:
                value = TEXT.sub(lambda text: text[0] if text[0].isascii() else quoted(text[0]), value)
            settings.append(f"{name}{equals}{value}")
    is_shown = bool(SHOW & set(flags))
    if (is_shown and is_sweep) or ("--resolve" in flags and not is_shown):
        raise UserError("--cfg job, or --cfg job --resolve, shows the configuration of one run, without -m")
    if places:
        if by_name := [setting for setting in settings if setting.lstrip("+").startswith(f"{positional}=")]:
            given = f"{places[0]} and as {by_name[0]}"
            raise UserError(f"{positional} are given twice, as {given}; give all of them in one way")
        settings.append(f"{positional}=[{','.join(map(quoted, places))}]")
    return Arguments(flags, settings)


def searchpath(settings: Iterable[str]) -> list[str]:
    """Return the user's own folders of options, which `hydra.searchpath` names."""
    folders = list[Any]()
    for line in settings:
        if line.startswith("hydra.searchpath="):
            with suppress(HydraException):  # which is reported later
                value = OverridesParser.create().parse_override(line).value()
                folders += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(os.path.abspath(str(folder).removeprefix("file://")) for folder in folders))


def check_names(own: Iterable[str]) -> None:
    """Raise a `UserError` if a folder of the user's options does not exist, or if Hydra would read another file in the
    place of one in it."""
    places = [Path(hydra.__file__).with_name("conf"), *map(Path, config_folders())]
    for folder in map(Path, own):
        if not folder.is_dir():
            raise UserError(f"the folder {folder} of options does not exist")
        for file in sorted(folder.rglob("*.yaml")):
            if hides := [place for place in places if (place / file.relative_to(folder)).is_file()]:
                raise UserError(f"{file} has the name of an option in {hides[0]}, which would be used; rename it")
        places.append(folder)


def as_command(name: str) -> str:
    """Return a command of this package in the form of the one that runs: with `python -m`, modules in the working
    directory are found, which the settings may name."""
    finds_modules = not {"", os.getcwd()}.isdisjoint(sys.path[:1])
    return f"python -m showattendtell.{name}" if finds_modules else f"showattendtell {name}"


def as_argument(name: str, value: object) -> str:
    """Return `name=value` as a user would type it, quoted if the shell or Hydra needs it."""
    return shlex.quote(f"{name}={as_value(str(value))}")


def as_value(value: str | Iterable[str]) -> str:
    """Return a text, or several as a list, as the value of a setting in an argument list, quoted if Hydra needs it."""
    if not isinstance(value, str):
        return f"[{','.join(map(as_value, value))}]"
    return value if re.fullmatch(PLAIN, value) else quoted(value)


def quoted(text: str) -> str:
    """Quote a text so that Hydra's command line and OmegaConf's interpolation take it literally."""
    return QuotedString(escaped(text), Quote.double).with_quotes()


def escaped(text: str) -> str:
    """Return the text with escapes, so that OmegaConf takes `${` in it literally."""
    return re.sub(r"(?<!\\)(\\*)\$\{", r"\1\1\\${", text)
