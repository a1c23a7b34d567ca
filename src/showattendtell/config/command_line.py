"""Checks a command line before anything runs, and spells it as Hydra takes it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.check import TARGET, find_faults, raise_all
from showattendtell.config.compose import LAUNCHER, SEARCH, compose
from showattendtell.config.signature import SignatureError, read_signature
from showattendtell.config.sweep import EXTRAS, lacking_package
from showattendtell.errors import UserError, did_you_mean

SUPPLIED = {
    "vocabulary": ("captions",),
    "augment": ("seed",),
    "data": ("dataset", "vocabulary", "source", "seed"),
    "attention": ("region_dim", "hidden_dim"),
    "attention.score": ("region_dim", "hidden_dim"),
    "decoder": ("vocabulary_size", "region_dim"),
    "optimizer": ("params",),
    "early_stopping": ("monitor", "mode"),
    "logger.wandb": ("folder", "config"),
    "logger.tensorboard": ("folder", "config"),
    "trainer": (
        *("default_root_dir", "logger", "callbacks", "enable_progress_bar", "enable_model_summary"),
        *("use_distributed_sampler", "num_sanity_val_steps", "plugins"),
    ),
}
"""Arguments of a part that the code gives to it, and that are no settings therefore."""


class Fault(NamedTuple):
    """The argument at fault, by its setting or group, and the sentence that says what is wrong."""

    key: str
    sentence: str


Run = tuple[tuple[str, str], ...]
"""What one run of a sweep is given: settings and groups, and their arguments."""


class Findings(NamedTuple):
    """Of one run: the settings that its YAML leaves to the code's default, what is misplaced in it with the sentences
    that say so, and the sentences on the values of the rest."""

    unstated: set[str]
    misplaced: dict[str, str]
    wrong: list[str]


def check_command(name: str, arguments: Sequence[str], complete: bool = True) -> list[str]:
    """The arguments as Hydra takes them, after every fault in them was told at once as a `UserError`.

    Unless they are to be `complete`, a setting that has no value yet is no fault. Nothing is said on the settings of an
    option that there is not.

    A setting that the YAML leaves to its default in the code is added with `++`, which Hydra wants for it; where a
    setting is given twice, the last value counts. Of a sweep every value is tried in its place, beside the first values
    of the others.
    """
    parsed = get_args_parser().parse_intermixed_args(list(arguments))
    if parsed.multirun and parsed.cfg:
        raise UserError("-m runs several values and --cfg shows the settings of one run; give one of them")
    default, groups = compose(name, [])
    if parsed.multirun:
        searched = _searched(name, parsed.overrides, groups)
        arguments, parsed.overrides = [*arguments, *searched], [*parsed.overrides, *searched]
    overrides, faults = _parse(parsed.overrides)
    for key, override in overrides.items():
        faults += _form_faults(override, parsed.multirun, groups)
        if key in groups and not override.is_delete():
            faults += _choice_faults(override, default.hydra.runtime.choices.get(key), groups)
    faulty = {fault.key for fault in faults}
    parts = tuple(f"{key.replace('/', '.')}." for key in faulty)
    judged = {key: override for key, override in overrides.items() if key not in faulty and not key.startswith(parts)}
    given = {key: _lines(override, groups) for key, override in judged.items()}

    first = {key: lines[0] for key, lines in given.items()}
    runs = {line: tuple({**first, key: line}.items()) for key, lines in given.items() for line in lines}
    distinct = dict.fromkeys([tuple(first.items()), *runs.values()])
    found = {run: _find(name, run, groups, complete and not faulty) for run in distinct}
    told = [fault.sentence for fault in faults]
    told += _placing_faults(given, {line: found[run] for line, run in runs.items()})
    raise_all([*told, *dict.fromkeys(sentence for findings in found.values() for sentence in findings.wrong)])
    return _spell(arguments, overrides, set().union(*(findings.unstated for findings in found.values())))


def _searched(name: str, lines: Sequence[str], groups: Mapping[str, list[str]]) -> list[str]:
    """The settings of the search space that is chosen, less those that are given."""
    overrides, _ = _parse(lines)
    space = overrides.get(SEARCH)
    if not space or space.value() not in groups.get(SEARCH, []):
        return []
    config, _ = compose(name, [str(space.input_line)])
    return [f"{key}={value}" for key, value in config.hydra.sweeper.params.items() if key not in overrides]


def _parse(lines: Sequence[str]) -> tuple[dict[str, Override], list[Fault]]:
    """The overrides by key, and a fault for each line that is none."""
    overrides: dict[str, Override] = {}
    faults = []
    for line in lines:
        try:
            override = OverridesParser.create().parse_override(line)
            overrides[override.key_or_group] = override
        except HydraException as fault:
            reason = str(fault).splitlines()[0]
            hint = f" ({reason}); quote special characters: 'name=\"value\"'" if "=" in line else ""
            faults.append(Fault(line, f"'{line}' is no setting{hint or '; settings are given as name=value'}"))
    return overrides, faults


def _form_faults(override: Override, multirun: bool, groups: Mapping[str, list[str]]) -> Iterator[Fault]:
    key, line = override.key_or_group, str(override.input_line)
    if override.is_delete():
        yield Fault(key, f"'{line}': {key} cannot be removed; settings are given as name=value")
    elif override.is_sweep_override() and not multirun:
        yield Fault(key, f"{line} gives several values; put -m before it to run them all")
    elif not _lines(override, groups):
        yield Fault(key, f"{line} gives no value at all")
    elif not multirun and ((key == LAUNCHER and _value(line) in EXTRAS) or (key == SEARCH and _value(line) != "null")):
        yield Fault(key, f"{line} is for several runs; put -m before it")
    elif key == SEARCH and override.is_sweep_override():
        yield Fault(key, f"{line} gives several search spaces; give one of them")


def _choice_faults(override: Override, default: str | None, groups: Mapping[str, list[str]]) -> Iterator[Fault]:
    group = override.key_or_group
    for option in (option for line in _lines(override, groups) for option in _options(line)):
        if option not in groups[group] and (option != "null" or default is not None):
            yield Fault(group, f"there is no {group}={option}{did_you_mean(option, groups[group])}")
        elif lack := lacking_package(group, option):
            yield Fault(group, lack)


def _lines(override: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """`name=value` for each value of a sweep; of a range or an interval for its ends."""
    key, given = override.key_or_group, override.value()
    if not override.is_sweep_override():
        return [_bare(override)]
    if isinstance(given, IntervalSweep):
        return [f"{key}={given.start}", f"{key}={given.end}"]
    if isinstance(given, Glob):
        return [f"{key}={option}" for option in given.filter(groups.get(key, []))]
    lines = [f"{key}={value}" for value in override.sweep_string_iterator()]
    return list(dict.fromkeys([*lines[:1], *lines[-1:]])) if isinstance(given, RangeSweep) else lines


def _bare(override: Override) -> str:
    """The argument without the `+` or `++` that only Hydra's own settings are told apart by."""
    line = str(override.input_line)
    return line if _is_hydras(override.key_or_group) else line.lstrip("+")


def _is_hydras(key: str) -> bool:
    return key.startswith(("hydra.", "hydra/"))


def _value(line: str) -> str:
    return line.partition("=")[2].strip("'\"")


def _options(line: str) -> list[str]:
    """What is chosen: one option, or several as `[wandb,tensorboard]`."""
    value = _value(line)
    return [option.strip() for option in value.strip("[]").split(",")] if value.startswith("[") else [value]


def _find(name: str, run: Run, groups: Mapping[str, list[str]], complete: bool) -> Findings:
    chosen = {key: line for key, line in run if key in groups}
    misplaced = _lacking_groups(name, chosen)
    choices = [line for key, line in chosen.items() if key not in misplaced]
    config, _ = compose(name, choices)
    settings = {key: line for key, line in run if key not in groups}
    misplaced |= _unknown_to_hydra(config, settings)
    misplaced |= _misplaced(config, {key: line for key, line in settings.items() if not _is_hydras(key)}, groups)
    placed = {key: line for key, line in settings.items() if key not in misplaced}
    unstated = {key for key in placed if not _is_hydras(key) and not _is_stated(config, key)}
    spelled = [f"++{line}" if key in unstated else line for key, line in placed.items()]
    try:
        config, _ = compose(name, [*choices, *spelled])
    except UserError as fault:
        return Findings(unstated, misplaced, [str(fault)])
    OmegaConf.set_struct(config, False)
    config.pop("hydra")
    return Findings(unstated, misplaced, find_faults(config, complete))


def _lacking_groups(name: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """The nested groups that the options chosen beside them do not have, with a sentence each."""
    nested = {group: line for group, line in chosen.items() if "/" in group}
    if not nested:
        return {}
    config, _ = compose(name, [line for group, line in chosen.items() if group not in nested])
    present = config.hydra.runtime.choices
    parents = {group: group.rpartition("/")[0] for group in nested if group not in present}
    return {g: f"{parent}={present[parent]} has no {g}; leave {nested[g]} out" for g, parent in parents.items()}


def _unknown_to_hydra(config: DictConfig, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of Hydra's own that there are not, with a sentence each; what has a `+` before it is added."""
    unknown = [key for key in settings if key.startswith("hydra.") and not _is_stated(config, key)]
    return {
        key: f"there is no setting {key}{did_you_mean(key, _siblings(config, key))}"
        for key in unknown
        if not settings[key].startswith("+")
    }


def _siblings(config: DictConfig, key: str) -> list[str]:
    """The settings that there are where it was looked for, or above, where that is no place either."""
    parent = key.rpartition(".")[0]
    node = OmegaConf.select(config, parent)
    if not isinstance(node, DictConfig):
        return _siblings(config, parent)
    return [f"{parent}.{name}" for name in map(str, node) if name != TARGET]


def _misplaced(config: DictConfig, settings: Mapping[str, str], groups: Mapping[str, list[str]]) -> dict[str, str]:
    """The settings that nothing in the configuration takes, with a sentence each. A `_target_` is put into it, since
    the other settings are for that."""
    misplaced = {}
    for key, line in sorted(settings.items(), key=lambda setting: not setting[0].endswith(f".{TARGET}")):
        fault = _misplacement(config, key, line, groups)
        if fault:
            misplaced[key] = fault
        elif key.endswith(f".{TARGET}"):
            OmegaConf.update(config, key, _value(line))
    return misplaced


def _misplacement(config: DictConfig, key: str, line: str, groups: Mapping[str, list[str]]) -> str:
    """What is wrong with the name of a setting; empty where nothing is."""
    node: Any = config
    *path, last = key.split(".")
    for depth, part in enumerate(path):
        names = _names(node, ".".join(path[:depth]))
        if part not in names or part not in node:
            return f"there is no setting {key}{did_you_mean(part, names)}"
        node = node._get_node(part)
    names = _names(node, ".".join(path))
    if last in SUPPLIED.get(".".join(path), ()):
        return f"{key} is set by the code; leave it out"
    if last not in names and "**" not in names and not (path and last == TARGET and _is_stated(config, key)):
        return f"there is no setting {key}{did_you_mean(last, names)}"
    inner = node._get_node(last) if last in node else None
    is_removed = _value(line) == "null" and isinstance(inner, DictConfig) and TARGET not in inner
    if isinstance(inner, DictConfig) and not _value(line).startswith("{") and not is_removed:
        group = key.replace(".", "/")
        hint = f" and choose it as {group}=NAME" if group in groups else ""
        return f"{key} has settings of its own; give them as {key}.NAME=value{hint}"
    return ""


def _is_stated(config: DictConfig, key: str) -> bool:
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and last in list(node)


def _names(node: Any, path: str) -> set[str]:
    """The names that a node takes: those that stand in it, and its target's arguments; `**` where it takes any."""
    if not isinstance(node, DictConfig):
        return set()
    names = {str(key) for key in node if not str(key).startswith("_") and (path or key != "hydra")}
    if TARGET in node:
        try:
            signature = read_signature(str(node[TARGET]))
        except SignatureError:  # told by the check of values
            return names | {"**"}
        names |= signature.parameters.keys() | ({"**"} if signature.open else set())
    return names - set(SUPPLIED.get(path, ()))


def _placing_faults(given: Mapping[str, Sequence[str]], by_line: Mapping[str, Findings]) -> Iterator[str]:
    """A sentence for each misplaced setting; where only some runs of a sweep lack it, with the values that do."""
    for key, own in given.items():
        faults = []
        for lines in given.values():
            lacking = [line for line in lines if key in by_line[line].misplaced]
            if 0 < len(lacking) < len(lines):
                faults.append(f"{' or '.join(lacking)}: {by_line[lacking[0]].misplaced[key]}")
        first = by_line[own[0]].misplaced
        yield from faults or ([first[key]] if key in first else [])


def _spell(arguments: Sequence[str], overrides: Mapping[str, Override], unstated: set[str]) -> list[str]:
    """The arguments with the prefixes that Hydra needs, less the settings that a later one replaces."""
    lines = {str(o.input_line): f"++{_bare(o)}" if key in unstated else _bare(o) for key, o in overrides.items()}
    given = set(get_args_parser().parse_intermixed_args(list(arguments)).overrides)
    return [lines.get(argument, argument) for argument in arguments if argument in lines or argument not in given]
