"""From a command line to a checked configuration: what every entry point shares."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
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
            _raise_all(find_faults(config))
            return run(config)

    def main() -> None:
        with telling_errors():
            arguments = sys.argv[1:]
            if {"-h", "--help"} & set(arguments):
                overrides = [argument for argument in arguments if not argument.startswith("-")]
                print(help_page(*compose(name, overrides), read_comments(name)))
                return
            sys.argv[1:] = check_command(name, arguments)
            hydra.main(config_path=config_folder(), config_name=name)(task)()

    return main


def run_folder() -> Path:
    """The folder that Hydra made for this run, as the user would type it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


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


def read_comments(name: str) -> dict[str, str]:
    """The comments behind the settings of a command's YAML, by setting; nested ones by their dotted name."""
    comments: dict[str, str] = {}
    path: list[str] = []
    for line in Path(config_folder(), f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        found = re.match(r"( *)([a-z_]+):(?:.*?  # (.*))?", line)
        if found:
            path = [*path[: len(found[1]) // 2], found[2]]
            comments[".".join(path)] = found[3] or ""
    return comments


def check_command(name: str, arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them, after every fault in them was told at once as a `UserError`.

    A setting that the YAML leaves to its default in the code is added with `++`, which Hydra wants for it.
    """
    overrides, faults = _parse(get_args_parser().parse_intermixed_args(list(arguments)).overrides)
    _, groups = compose(name, [])
    chosen = {key: override for key, override in overrides.items() if key in groups}
    faults += [fault for override in chosen.values() for fault in _group_faults(override, groups)]
    _raise_all(faults)
    config, _ = compose(name, [str(o.input_line) for o in chosen.values() if not o.is_sweep_override()])
    spelled: dict[str, str] = {}
    for override in overrides.values():
        if override.key_or_group in groups or override.key_or_group.startswith("hydra"):
            continue
        prefix, fault = _place(config, override)
        faults += [fault] if fault else []
        spelled[override.input_line or ""] = f"{prefix}{override.input_line}"
    _raise_all(faults)
    settled = [o.input_line for o in overrides.values() if not o.is_sweep_override()]
    composed, _ = compose(name, [spelled.get(line, line) for line in settled if line])
    OmegaConf.set_struct(composed, False)
    composed.pop("hydra")
    _raise_all(find_faults(composed))
    return [spelled.get(argument, argument) for argument in arguments]


def _raise_all(faults: Sequence[str]) -> None:
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
            hint = "" if "=" in line else "; settings are given as name=value"
            faults.append(f"'{line}' is no setting{hint or f': {str(fault).splitlines()[0]}'}")
    return overrides, faults


def _options(group: str) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.CONFIG)


def _group_faults(override: Override, groups: dict[str, list[str]]) -> Iterator[str]:
    group = override.key_or_group
    given = override.value()
    for value in map(str, given.list if isinstance(given, ChoiceSweep) else [given]):
        if value in groups[group] or value == "None":
            continue
        if value in NOT_BUILT.get(group, ()):
            yield f"{group}={value} is not built yet; built are {', '.join(groups[group])}"
        else:
            yield f"there is no {group}={value}{did_you_mean(value, groups[group])}"


def _place(config: DictConfig, override: Override) -> tuple[str, str]:
    """The prefix that Hydra needs for the setting, and what is wrong with its name (one of them is empty)."""
    if override.is_add() or override.is_force_add() or override.is_delete():
        return "", ""
    node: Any = config
    *path, last = override.key_or_group.split(".")
    for depth, key in enumerate(path):
        if not isinstance(node, DictConfig) or key not in node:
            where = ".".join(path[:depth])
            return "", f"there is no setting {override.key_or_group}{did_you_mean(key, _names(node, where))}"
        node = node._get_node(key)
    names = _names(node, ".".join(path))
    if isinstance(node, DictConfig) and last in node:
        return "", ""
    if last in names or "**" in names:
        return "++", ""
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
