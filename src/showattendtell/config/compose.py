"""Compose the configuration of a command without running it, and compare configurations."""

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose as compose_overrides
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, RangeSweep
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.command_line import admit, config_folders, find_groups, find_options, parse, searchpath
from showattendtell.config.schemas import TrainSettings
from showattendtell.config.validation import TARGET, raise_errors, read_settings, sentence, to_plain, with_defaults
from showattendtell.errors import UserError, did_you_mean, first_line
from showattendtell.settings import Node, format_value, is_part, join, leaves, may_differ

# Hydra 1.3 announces that options named as those of a plugin, which only set other defaults, will need a defaults list
warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema", UserWarning)

Restore = Callable[[DictConfig], Mapping[str, Any]]

DEFAULT = "its default"  # shown for a setting that a configuration does not contain
MODEL = ("encoder", "attention", "decoder")  # the groups of settings that shape the model

OTHER_OPTIONS = {
    "encoder": " (timm's {0} is encoder.network={0} encoder.weights=hub)",
    "logger": " (several loggers are logger=[NAME,NAME])",
    "optimizer": " (another class is optimizer._target_=torch.optim.NAME)",
    "trainer": " (a device is trainer.accelerator={0})",
}
"""What else may be meant by an option that a config group lacks."""

HARMLESS = "_target_ weights trainable frozen_stride learning_rate gradient_checkpointing dropout dropout_places"
"""Model settings that may differ when weights are loaded from another model."""


CPU = "/proc/cpuinfo"
GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of CUDA, ROCm and WSL


def mixed_precision() -> str | None:
    """Return bf16-mixed on a machine whose CPU computes in bfloat16. None with a GPU, whose precision `train` chooses,
    and without either."""
    described = Path(CPU)
    has_bfloat16 = described.is_file() and re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", described.read_text())
    return "bf16-mixed" if has_bfloat16 and not any(map(os.path.exists, GPUS)) else None


OmegaConf.register_new_resolver("mixed_precision", mixed_precision, replace=True)


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a composed configuration without Hydra's own node."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def compose(command: str, arguments: Sequence[str] = (), complete: bool = True) -> DictConfig:
    """Return the checked configuration of a command that does not run.

    Args:
        arguments: its arguments, as typed or in Hydra's form.
        complete: whether a setting without a value is an error.

    Raises:
        UserError: with all errors in the arguments.
    """
    config, _ = read_command(command, parse(command, arguments).overrides, complete)
    return without_hydra(config)


def read_command(
    command: str, lines: Sequence[str], complete: bool = True, restore: Restore = without_hydra
) -> tuple[DictConfig, dict[str, Any]]:
    """Compose the configuration of a command, and return it with Hydra's own node, and its checked settings.

    Args:
        lines: its arguments in Hydra's form.
        complete: whether a setting without a value is an error.
        restore: function that returns the configuration to check.

    Raises:
        UserError: with all errors in the arguments.
    """
    store = ConfigStore.instance()
    running, admitted = GlobalHydra.instance().hydra, store.load("base/typed.yaml").node  # of another command
    GlobalHydra.instance().clear()
    admit(lines)
    try:
        with initialize_config_dir(config_folders()[0], version_base=None):
            config, settings, errors = _compose(command, lines, complete, restore)
    finally:
        store.store("typed", admitted, "base", "_global_")
        if running:
            GlobalHydra.instance().initialize(running)
    raise_errors(errors)
    return config, settings


def _compose(
    command: str, lines: Sequence[str], complete: bool, restore: Restore
) -> tuple[DictConfig, dict[str, Any], list[str]]:
    """Return as `read_command`, in an initialized Hydra, and all errors in the lines."""
    try:
        config = compose_overrides(command, list(lines), return_hydra_config=True)
    except (HydraException, ValueError) as error:
        faulty = find_faulty(lines)
        if not faulty:  # such as choices that are wrong together
            return DictConfig({}), {}, [sentence(error)]
        # without these lines, the others can be checked too
        groups = tuple(f"{line.partition('=')[0]}." for line in faulty)
        rest = [line for line in lines if line not in faulty and not line.startswith(groups)]
        config, settings, errors = _compose(command, rest, False, restore)
        return config, settings, [*faulty.values(), *errors]
    return config, *read_settings(restore(config), complete)


def find_faulty(lines: Sequence[str], is_sweep: bool = False) -> dict[str, str]:
    """Return each override that Hydra cannot use, whatever the others are, and why."""
    return {line: fault for line in lines if (fault := _fault(line, searchpath(lines), is_sweep))}


def _fault(line: str, own: Sequence[str], is_sweep: bool) -> str:
    try:
        override = OverridesParser.create().parse_override(line)
    except HydraException as error:
        hint = f"; settings are given as {line if line.isidentifier() else 'name'}=value"
        if "=" in line:
            hint = f" ({first_line(error)}); quote special characters: 'name=\"value\"'"
        elif line.endswith(".ckpt"):
            hint = f"; give it as checkpoint={line}, or to train as init_from={line}"
        return f"'{line}' is not a setting{hint}"
    if override.is_sweep_override() and not is_sweep:
        return f"{line} gives several values; put -m before it to run them all, or brackets for a list, NAME=[A,B]"
    group, choice = override.key_or_group, override.value()
    if isinstance(choice, RangeSweep) and (choice.step == 0 or next(iter(choice.range()), None) is None):
        return f"{line} has no values"
    if group.startswith("hydra/"):  # Hydra has options of its own
        return ""
    known = find_options(group, own)
    if "/" in group and not known:
        return f"there is no config group {group}{did_you_mean(group, find_groups(own))}"
    options = choice.list if isinstance(choice, ChoiceSweep) else choice
    for option in options if isinstance(options, list) else [options]:
        if known and option not in known and not isinstance(option, Glob):
            meant = "none" if option is None and "none" in known else format_value(option)
            hint = OTHER_OPTIONS.get(group, "").format(option)
            return f"there is no {group}={format_value(option)}{did_you_mean(meant, known)}{hint}"
    return ""


def as_settings(config: Mapping[str, Any]) -> Any:
    """Return a checked configuration as the object of its `_target_`, whose parts are nodes."""
    plain = to_plain(config)
    return _as_dataclass(get_class(plain[TARGET]), plain)


def _as_dataclass(cls: Any, plain: Mapping[str, Any]) -> Any:
    kinds, values = get_type_hints(cls), dict[str, Any]()
    for name, value in plain.items():
        if name not in kinds:  # the target, and an option without settings
            continue
        kind, values[name] = kinds[name], value
        if is_part(kind):
            values[name] = as_node(value, name)
        elif is_dataclass(kind):
            values[name] = _as_dataclass(kind, value)
        if kind is Node and not isinstance(values[name], Node):
            raise UserError(f"{name}={format_value(value)} is not a part; choose one of its options")
    return cls(**values)


def as_node(plain: Any, path: str = "") -> Any:
    """Return the node of a part that is plain data; a group of parts as a dict of nodes; anything else as it is."""
    if not isinstance(plain, Mapping):
        return plain
    if TARGET not in plain:
        return {name: as_node(value, join(path, name)) for name, value in plain.items()}
    return Node(plain[TARGET], {name: value for name, value in plain.items() if name != TARGET}, path)


def as_record(settings: Any) -> Any:
    """Return settings as plain data, as a record of what ran; `as_settings` is the inverse."""
    if isinstance(settings, Node):
        return {TARGET: settings.target, **settings.arguments}
    if isinstance(settings, Mapping):
        return {name: as_record(value) for name, value in settings.items()}
    if not is_dataclass(settings):
        return settings
    values = {each.name: as_record(getattr(settings, each.name)) for each in fields(settings)}
    return {TARGET: f"{type(settings).__module__}.{type(settings).__qualname__}", **values}


def training_record(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings of a training as plain data, without `resume`."""
    record: dict[str, Any] = as_record(settings)
    del record["resume"]
    return record


def find_differences(current: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return `setting=VALUE instead of VALUE` for each setting in which the records of two trainings differ, except
    settings that may change when a run is resumed."""
    now, before = dict(leaves("", current)), dict(leaves("", stored))
    differing = [name for name in {**before, **now} if now.get(name, DEFAULT) != before.get(name, DEFAULT)]
    return [
        f"{name}={format_value(now.get(name, DEFAULT))} instead of {format_value(before.get(name, DEFAULT))}"
        for name in differing
        if not may_differ(name)
    ]


def model_differences(current: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return `setting=VALUE`, with the stored value, for each setting of the model that the records of two trainings
    have and in which they differ. Defaults in the code count as settings."""
    now, before = (
        {name: value for part in MODEL for name, value in leaves(part, with_defaults(record[part], part))}
        for record in (current, stored)
    )
    names = [name for name in before if name in now and name.rpartition(".")[2] not in HARMLESS.split()]
    return [f"{name}={format_value(before[name])}" for name in names if now[name] != before[name]]
