"""From a command line to a checked configuration: what every entry point shares."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from showattendtell.config.check import TARGET, find_faults
from showattendtell.config.help import help_page
from showattendtell.config.signature import SignatureError, read_signature
from showattendtell.errors import UserError, did_you_mean

NOT_BUILT = {
    "attention": ("hard", "dot", "additive", "general", "multihead", "adaptive", "none"),
    "decoder": ("nic", "log_bilinear"),
    "dataset": ("flickr30k", "coco", "custom"),
}
"""Names that users know from the paper and that the project means to have."""


def config_folder() -> str:
    """`conf/`: inside the package where it was installed as a wheel, else at the top of the checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "train.yaml").is_file():
            return str(folder)
    raise UserError(f"the folder conf/ is missing beside {package}; reinstall showattendtell")


def entry_point(name: str, run: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """`main()` of a command: reads `conf/NAME.yaml` and the command line, checks them, and calls `run(config)`.

    Whatever the user can mend is printed as a sentence, with exit status 2.
    """

    def task(config: DictConfig) -> Any:
        with telling_errors():
            raise_all(find_faults(config))
            return run(config)

    def main() -> None:
        with telling_errors():
            arguments = sys.argv[1:]
            if {"-h", "--help"} & set(arguments):
                settings = [argument for argument in arguments if not argument.startswith("-")]
                print(help_page(*compose(name, check_command(name, settings, complete=False))))
                return
            sys.argv[1:] = check_command(name, arguments)
            hydra.main(config_path=config_folder(), config_name=name)(task)()

    return main


def run_folder() -> Path:
    """The folder that Hydra made for this run, as the user would type it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def as_argument(name: str, value: object) -> str:
    """`name=value` as a user would have to type it, quoted for the shell and for Hydra where it needs that."""
    if re.fullmatch(r"[\w./~-]+", str(value)):
        return f"{name}={value}"
    return shlex.quote(f"{name}={json.dumps(str(value), ensure_ascii=False)}")


@contextmanager
def telling_errors() -> Iterator[None]:
    """Print a user's fault on stderr and exit with status 2."""
    try:
        yield
    except UserError as fault:
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(2)
    except OSError as fault:
        where = f"{fault.filename}: " if fault.filename else ""
        print(f"error: {where}{fault.strerror or fault}; is there room, and may it be written?", file=sys.stderr)
        sys.exit(2)


def compose(name: str, overrides: Sequence[str]) -> tuple[DictConfig, dict[str, list[str]]]:
    """The configuration of a command, and the options of each of its groups."""
    with hydra.initialize_config_dir(config_folder()):
        try:
            config = hydra.compose(name, list(overrides), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as fault:
            raise UserError(str(fault).splitlines()[0]) from None
        chosen = [group for group in reversed(list(config.hydra.runtime.choices)) if not group.startswith("hydra")]
        groups = {group: _options(group) for group in chosen}
    return config, groups


def check_command(name: str, arguments: Sequence[str], complete: bool = True) -> list[str]:
    """The arguments as Hydra takes them, after every fault in them was told at once as a `UserError`.

    Unless they are to be `complete`, a setting that has no value yet is no fault.

    A setting that the YAML leaves to its default in the code is added with `++`, which Hydra wants for it; where a
    setting is given twice, the last value counts.
    """
    parsed = get_args_parser().parse_intermixed_args(list(arguments))
    overrides, faults = _parse(parsed.overrides)
    _, groups = compose(name, [])
    for override in overrides.values():
        faults += _form_faults(override, parsed.multirun)
        if override.key_or_group in groups and not override.is_delete():
            faults += _group_faults(name, override, groups)
    sound = {key: override for key, override in overrides.items() if not _is_faulty(key, override, faults)}
    choices = [_first_line(override) for key, override in sound.items() if key in groups]
    config, _ = compose(name, choices)
    spelled: dict[str, Override] = {}
    for key, override in sound.items():
        if key.startswith("hydra"):
            spelled[str(override.input_line)] = override
        elif key not in groups:
            prefix, fault = _place(config, override)
            faults += [fault] if fault else []
            if not fault:
                spelled[prefix + str(override.input_line)] = override
    faults += [fault for fault in _value_faults(name, choices, spelled) if complete or "is not set" not in fault]
    raise_all(faults)
    return _spell(arguments, overrides, spelled)


def _form_faults(override: Override, multirun: bool) -> Iterator[str]:
    if override.is_delete():
        yield f"'{override.input_line}': {override.key_or_group} cannot be removed; settings are given as name=value"
    elif override.is_sweep_override() and not multirun:
        yield f"{override.input_line} gives several values; put -m before it to run them all"


def _is_faulty(key: str, override: Override, faults: Sequence[str]) -> bool:
    return any(str(override.input_line) in fault or f" {key}=" in fault or fault.startswith(key) for fault in faults)


def _first_line(override: Override) -> str:
    """The override, with its first value where it has several."""
    if not override.is_sweep_override():
        return str(override.input_line)
    return f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"


def _value_faults(name: str, choices: Sequence[str], spelled: Mapping[str, Override]) -> list[str]:
    """Faults of the composed configuration, and of every value of a sweep in its place."""
    faults: dict[str, None] = {}
    firsts = {line: _with_prefix(line, _first_line(override)) for line, override in spelled.items()}
    lines = [list(firsts.values())]
    for line, override in spelled.items():
        if override.is_sweep_override() and isinstance(override.value(), ChoiceSweep):
            values = list(override.sweep_string_iterator())[1:]
            others = [first for other, first in firsts.items() if other != line]
            lines += [[*others, _with_prefix(line, f"{override.key_or_group}={value}")] for value in values]
    for settings in lines:
        config, _ = compose(name, [*choices, *settings])
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        faults |= dict.fromkeys(find_faults(config))
    return list(faults)


def _with_prefix(spelled: str, line: str) -> str:
    return f"++{line.lstrip('+')}" if spelled.startswith("++") else line


def _spell(arguments: Sequence[str], overrides: Mapping[str, Override], spelled: Mapping[str, Override]) -> list[str]:
    """The arguments with the prefixes that Hydra needs, less the settings that a later one replaces."""
    last = {str(override.input_line): str(override.input_line) for override in overrides.values()}
    last |= {str(override.input_line): line for line, override in spelled.items()}
    given = {line for line in arguments if "=" in line and not line.startswith("-")}
    return [last.get(argument, argument) for argument in arguments if argument in last or argument not in given]


def raise_all(faults: Sequence[str]) -> None:
    """One `UserError` that tells all the faults, if there are any."""
    if faults:
        raise UserError(faults[0] if len(faults) == 1 else "\n  ".join([f"{len(faults)} settings are wrong:", *faults]))


def _parse(lines: Sequence[str]) -> tuple[dict[str, Override], list[str]]:
    """The overrides by key, and a sentence for each that is none."""
    overrides: dict[str, Override] = {}
    faults = []
    for line in lines:
        try:
            override = OverridesParser.create().parse_override(line)
            overrides[override.key_or_group] = override
        except HydraException as fault:
            reason = str(fault).splitlines()[0]
            hint = f" ({reason}); quote special characters: 'name=\"value\"'" if "=" in line else ""
            faults.append(f"'{line}' is no setting{hint or '; settings are given as name=value'}")
    return overrides, faults


def _options(group: str) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.CONFIG)


def _group_faults(name: str, override: Override, groups: Mapping[str, list[str]]) -> Iterator[str]:
    group = override.key_or_group
    default = compose(name, [])[0].hydra.runtime.choices[group]
    given = override.value()
    for value in map(str, given.list if isinstance(given, ChoiceSweep) else [given]):
        if value in groups[group] or (value == "None" and default is None):
            continue
        value = "null" if value == "None" else value
        if value in NOT_BUILT.get(group, ()):
            yield f"{group}={value} is not built yet; built are {', '.join(groups[group])}"
        else:
            yield f"there is no {group}={value}{did_you_mean(value, groups[group])}"


def _place(config: DictConfig, override: Override) -> tuple[str, str]:
    """The prefix that Hydra needs for the setting, and what is wrong with its name (one of them is empty)."""
    own = "" if not (override.is_add() or override.is_force_add()) else None
    node: Any = config
    *path, last = override.key_or_group.split(".")
    for depth, key in enumerate(path):
        if not isinstance(node, DictConfig) or key not in node:
            where = ".".join(path[:depth])
            return "", f"there is no setting {override.key_or_group}{did_you_mean(key, _names(node, where))}"
        node = node._get_node(key)
    names = _names(node, ".".join(path))
    if isinstance(node, DictConfig) and last in node:
        if isinstance(node._get_node(last), DictConfig) and not isinstance(override.value(), dict):
            return (
                "",
                f"{override.key_or_group} has settings of its own; give them as {override.key_or_group}.NAME=value",
            )
        return "", ""
    if last in names or "**" in names:
        return "++" if own == "" else "", ""
    return "", f"there is no setting {override.key_or_group}{did_you_mean(last, names)}"


def _names(node: Any, path: str) -> set[str]:
    """The names that a node takes: those that stand in it, and its target's arguments; `**` where it takes any."""
    if not isinstance(node, DictConfig):
        return set()
    names = {str(key) for key in node if not str(key).startswith("_") and (path or key != "hydra")}
    if TARGET in node:
        try:
            signature = read_signature(node[TARGET])
        except SignatureError:
            return names
        names |= signature.parameters.keys() | ({"**"} if signature.open else set())
    return names
