"""Check a command line before anything runs, and convert it to the form that Hydra accepts."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.compose import LAUNCHER, SEARCH, SEARCHPATH, compose, find_searchpath, without_hydra
from showattendtell.config.hydra_internals import parse_arguments, raw_node
from showattendtell.config.signatures import SignatureError, read_signature
from showattendtell.config.validation import TARGET, join, raise_errors, validate
from showattendtell.errors import UserError, did_you_mean, first_line

SUPPLIED = {
    "vocabulary": ("captions", "tokenizer", "languages"),
    "augment": ("seed",),
    "data": ("dataset", "vocabulary", "source", "seed"),
    "attention": ("region_dim", "hidden_dim"),
    "attention.score": ("region_dim", "hidden_dim"),
    "decoder": ("vocabulary_size", "region_dim"),
    "optimizer": ("params",),
    "callbacks.early_stopping": ("monitor", "mode", "check_on_train_epoch_end"),
    "trainer": (
        *("default_root_dir", "logger", "callbacks", "enable_progress_bar", "enable_model_summary"),
        *("use_distributed_sampler", "num_sanity_val_steps", "plugins"),
    ),
}
"""Arguments of a part that the code passes; they are not settings."""

# launchers that need another package, each with the extra of this project that installs it
EXTRAS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}

SettingError = tuple[str, str]  # the setting or group of a wrong argument, and the error message


def check_command(name: str, arguments: Sequence[str], complete: bool = True) -> list[str]:
    """Return the arguments of a command in the form that Hydra accepts.

    A setting that the YAML leaves to its default in the code gets the prefix `++`, which Hydra requires. If a setting
    is given twice, the last value counts. In a sweep every value is checked together with the first values of the
    other settings. Settings of an unknown option are not checked.

    Args:
        name: the command.
        arguments: its arguments, as typed.
        complete: whether a setting without a value is an error.

    Raises:
        UserError: with all errors in the arguments.
    """
    parsed = parse_arguments(arguments)
    if parsed.multirun and parsed.cfg:
        raise UserError("-m runs several values and --cfg shows the settings of one run; give one of them")
    default, groups = compose(name, find_searchpath(parsed.overrides))
    if parsed.multirun:
        searched = _searched(name, parsed.overrides, groups)
        arguments, parsed.overrides = [*arguments, *searched], [*parsed.overrides, *searched]
    overrides, errors = _parse(parsed.overrides)
    for key, override in overrides.items():
        errors += _form_errors(override, parsed.multirun, groups)
        if key in groups and not override.is_delete():
            errors += _choice_errors(override, default.hydra.runtime.choices.get(key), groups)
    invalid = {key for key, _ in errors}
    parts = tuple(f"{key.replace('/', '.')}." for key in invalid)
    valid = {key: override for key, override in overrides.items() if key not in invalid and not key.startswith(parts)}
    lines_by_key = {key: _lines(override, groups) for key, override in valid.items()}

    first = {key: lines[0] for key, lines in lines_by_key.items()}
    runs = {line: tuple({**first, key: line}.items()) for key, lines in lines_by_key.items() for line in lines}
    distinct = dict.fromkeys([tuple(first.items()), *runs.values()])
    results = {run: _find(name, dict(run), groups, complete and not invalid) for run in distinct}
    sentences = [sentence for _, sentence in errors]
    sentences += _placement_errors(lines_by_key, {line: results[run][1] for line, run in runs.items()})
    raise_errors([*sentences, *dict.fromkeys(sentence for _, _, messages in results.values() for sentence in messages)])

    # add the prefixes that Hydra needs, and leave out settings that a later argument overrides
    not_in_config = {key for keys, _, _ in results.values() for key in keys}
    spelled = {str(o.input_line): f"++{_bare(o)}" if key in not_in_config else _bare(o) for key, o in overrides.items()}
    settings = set(parse_arguments(arguments).overrides)
    return [
        spelled.get(argument, argument) for argument in arguments if argument in spelled or argument not in settings
    ]


def _searched(name: str, lines: Sequence[str], groups: Mapping[str, list[str]]) -> list[str]:
    """Return the settings of the chosen search space that the command line does not override."""
    overrides, _ = _parse(lines)
    space = overrides.get(SEARCH)
    if not space or space.value() not in groups.get(SEARCH, []):
        return []
    config, _ = compose(name, [*find_searchpath(lines), str(space.input_line)])
    return [f"{key}={value}" for key, value in config.hydra.sweeper.params.items() if key not in overrides]


def _parse(lines: Sequence[str]) -> tuple[dict[str, Override], list[SettingError]]:
    """Return the overrides by key, and a problem for each line that cannot be parsed."""
    overrides, errors = {}, []
    for line in lines:
        try:
            override = OverridesParser.create().parse_override(line)
            overrides[override.key_or_group] = override
        except HydraException as error:
            reason = first_line(error)
            hint = f" ({reason}); quote special characters: 'name=\"value\"'" if "=" in line else ""
            errors.append((line, f"'{line}' is not a setting{hint or '; settings are given as name=value'}"))
    return overrides, errors


def _form_errors(override: Override, multirun: bool, groups: Mapping[str, list[str]]) -> Iterator[SettingError]:
    key, line = override.key_or_group, str(override.input_line)
    if line.endswith("="):
        yield key, f"{line} has no value; give {line}VALUE"
    elif override.is_delete():
        yield key, f"'{line}': {key} cannot be removed; settings are given as name=value"
    elif override.is_sweep_override() and not multirun:
        yield key, f"{line} gives several values; put -m before it to run them all"
    elif not _lines(override, groups):
        yield key, f"{line} gives no value at all"
    elif not multirun and ((key == LAUNCHER and _value(line) in EXTRAS) or (key == SEARCH and _value(line) != "null")):
        yield key, f"{line} is for several runs; put -m before it"
    elif key == SEARCH and override.is_sweep_override():
        yield key, f"{line} gives several search spaces; give one of them"


def _choice_errors(override: Override, default: str | None, groups: Mapping[str, list[str]]) -> Iterator[SettingError]:
    group = override.key_or_group
    for value in map(_value, _lines(override, groups)):
        is_list = value.startswith("[")  # several options, as in [wandb,tensorboard]
        for option in [each.strip() for each in value.strip("[]").split(",")] if is_list else [value]:
            choice = f"{group}={option}"
            if option not in groups[group] and (option != "null" or default is not None):
                yield group, f"there is no {choice}{did_you_mean(option, groups[group])}"
            elif lack := _missing_package(group, option):
                yield group, lack


def _missing_package(group: str, option: str) -> str:
    """Return an error message if the package of a launcher or search space is not installed, else an empty text."""
    if group == SEARCH:
        plugin, part, extra = "optuna", "sweeper", "sweeps"
    elif group == LAUNCHER and option in EXTRAS:
        plugin, part, extra = option.partition("_")[0], "launcher", EXTRAS[option]
    else:
        return ""
    with suppress(ModuleNotFoundError):  # its parent package is missing
        if find_spec(f"hydra_plugins.hydra_{plugin}_{part}"):
            return ""
    return f"{group}={option} needs the package hydra-{plugin}-{part}; run pip install 'showattendtell[{extra}]'"


def _lines(override: Override, groups: Mapping[str, list[str]]) -> list[str]:
    """Return `name=value` for each value of a sweep; for a range or an interval only its ends."""
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
    """Return the argument without `+` or `++`, except for Hydra's own settings, where the prefix has a meaning."""
    line = str(override.input_line)
    return line if override.key_or_group.startswith(("hydra.", "hydra/")) else line.lstrip("+")


def _value(line: str) -> str:
    return line.partition("=")[2].strip("'\"")


def _find(
    name: str, run: Mapping[str, str], groups: Mapping[str, list[str]], complete: bool
) -> tuple[set[str], dict[str, str], list[str]]:
    """Return, for the arguments of one run of a sweep by setting or group: the settings that its YAML leaves to the
    default in the code, misplaced settings with their error messages, and error messages about the other values."""
    options = {key: line for key, line in run.items() if key in groups or key == SEARCHPATH}
    misplaced = _missing_groups(name, options)
    choices = [line for key, line in options.items() if key not in misplaced]
    config, _ = compose(name, choices)
    settings = {key: line for key, line in run.items() if key not in groups}
    # Hydra itself checks its groups, and a prefix of the user adds a setting to Hydra's own
    plain = {key: line for key, line in settings.items() if not line.startswith(("+", "hydra/"))}
    in_config = {key for key in plain if _is_stated(config, key)}
    misplaced |= _misplaced(config, plain, groups)
    placed = {key: line for key, line in settings.items() if key not in misplaced}
    unstated = placed.keys() & (plain.keys() - in_config)
    spelled = [f"++{line}" if key in unstated else line for key, line in placed.items()]
    try:
        config, _ = compose(name, [*choices, *spelled])
    except UserError as error:
        return unstated, misplaced, [str(error)]
    return unstated, misplaced, validate(without_hydra(config), complete)


def _missing_groups(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return an error message for each nested group that the chosen option of its parent group does not have."""
    nested = {group: line for group, line in options.items() if "/" in group}
    if not nested:
        return {}
    config, _ = compose(name, [line for group, line in options.items() if group not in nested])
    present = config.hydra.runtime.choices
    parents = {group: group.rpartition("/")[0] for group in nested if group not in present}
    return {g: f"{parent}={present[parent]} has no {g}; leave {nested[g]} out" for g, parent in parents.items()}


def _misplaced(config: DictConfig, settings: Mapping[str, str], groups: Mapping[str, list[str]]) -> dict[str, str]:
    """Return an error message for each setting that nothing in the configuration accepts. `_target_` settings come
    first, because the other settings belong to the new target."""
    misplaced = {}
    for key, line in sorted(settings.items(), key=lambda setting: not setting[0].endswith(f".{TARGET}")):
        error = _misplacement(config, key, line, groups)
        if error:
            misplaced[key] = error
        elif key.endswith(f".{TARGET}"):
            OmegaConf.update(config, key, _value(line), force_add=True)
    return misplaced


def _misplacement(config: DictConfig, key: str, line: str, groups: Mapping[str, list[str]]) -> str:
    """Return the error message about the name of a setting, empty if the name is valid."""
    node: Any = config
    *path, last = key.split(".")
    if path[:-1] == ["callbacks"] and last == TARGET:
        return ""  # the name of a callback is the user's choice
    for depth, part in enumerate(path):
        names = _names(node, ".".join(path[:depth]))
        if part not in names or part not in node:
            return f"there is no setting {key}{did_you_mean(part, names)}"
        node = raw_node(node, part)
    names = _names(node, ".".join(path))
    if last in SUPPLIED.get(".".join(path), ()):
        return f"{key} is set by the code; leave it out"
    if last not in names and "**" not in names and not (path and last == TARGET and _is_stated(config, key)):
        return f"there is no setting {key}{did_you_mean(last, names)}"
    inner = raw_node(node, last) if last in node else None
    can_be_removed = isinstance(inner, DictConfig) and (TARGET not in inner or list(path) == ["callbacks"])
    is_removed = _value(line) == "null" and can_be_removed
    if isinstance(inner, DictConfig) and not _value(line).startswith("{") and not is_removed:
        group = key.replace(".", "/")
        if key == "loss":
            return "the loss comes with the attention; leave loss= out, and give its settings as loss.NAME=value"
        if key == "dataset" and key not in groups:
            return "the data set is that of the checkpoint; for other photographs, use caption and then score"
        hint = f" and choose it as {group}=NAME" if group in groups else ""
        return f"{key} has settings of its own; give them as {key}.NAME=value{hint}"
    return ""


def with_defaults(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return plain settings with the defaults of all arguments that they leave out, as a record of a run."""
    filled: dict[str, Any] = {}
    if target := settings.get(TARGET):
        with suppress(SignatureError):
            for name, parameter in read_signature(target).parameters.items():
                if parameter.default is not None and name not in SUPPLIED.get(path, ()):
                    filled[name] = parameter.default
                    with suppress(ValueError):  # an expression stays as it is
                        filled[name] = ast.literal_eval(parameter.default)
    for key, value in settings.items():
        filled[key] = with_defaults(value, join(path, key)) if isinstance(value, Mapping) else value
    return filled


def _is_stated(config: DictConfig, key: str) -> bool:
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and last in list(node)


def _names(node: Any, path: str) -> set[str]:
    """Return the names that a node accepts: its keys and its target's arguments; `**` if it accepts any name."""
    if not isinstance(node, DictConfig):
        return set()
    names = {str(key) for key in node if not str(key).startswith("_")}
    if TARGET in node:
        try:
            signature = read_signature(str(node[TARGET]))
        except SignatureError:  # reported by the check of values
            return names | {"**"}
        names |= signature.parameters.keys() | ({"**"} if signature.open else set())
    return names - set(SUPPLIED.get(path, ()))


def _placement_errors(
    lines_by_key: Mapping[str, Sequence[str]], by_line: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield an error message for each misplaced setting, with the invalid sweep values if other values accept it."""
    for key, key_lines in lines_by_key.items():
        errors = []
        for lines in lines_by_key.values():
            failing = [line for line in lines if key in by_line[line]]
            if 0 < len(failing) < len(lines):
                errors.append(f"{' or '.join(failing)}: {by_line[failing[0]][key]}")
        first = by_line[key_lines[0]]
        yield from errors or ([first[key]] if key in first else [])
