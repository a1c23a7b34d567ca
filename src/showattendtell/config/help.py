"""The pages of `--help` and `--help all`. Descriptions of settings are those in the docstrings of the configured
classes."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from showattendtell.config.command_line import config_folders, find_options, parse, searchpath
from showattendtell.config.compose import compose
from showattendtell.config.signatures import Parameter, Signature, SignatureError
from showattendtell.config.validation import TARGET, format_value, join, node_signature

COMMON = {
    "train": "dataset.root seed init_from resume monitor cache data.batch_size vocabulary.size encoder.trainable "
    "decoder.hidden_dim decoder.dropout loss.doubly_stochastic_weight optimizer.lr trainer.max_epochs "
    "trainer.precision trainer.devices callbacks.early_stopping.patience",
    "prepare": "dataset.root dataset.skip_unreadable cache encoder.size encoder.resize encoder.crop_mode "
    "features.workers features.dtype features.precision features.engine features.views",
    "evaluate": "checkpoint split metrics language output device decoding.beam_size decoding.precision dataset.root "
    "dataset.entities dataset.instances",
    "caption": "checkpoint images split number compare formats overwrite output resume workers device language "
    "decoding.beam_size decoding.max_length decoding.prefix decoding.required decoding.forbidden dataset.root",
}
"""Commands with many settings, and the settings that their page without `all` describes, in this order."""

GROUPS = {"prepare": ("dataset", "encoder", "experiment")}
"""Commands that accept the config groups of `train` but use few of them."""

OF_LIBRARIES = {
    "optimizer.lr": "the learning rate.",
    "trainer.accelerator": "cpu, gpu, or auto for the GPU if there is one.",
    "trainer.devices": "the number of GPUs, or a list of GPU indices; more than one needs trainer=ddp.",
    "trainer.gradient_clip_val": "the largest norm of the gradient; null clips nothing.",
    "trainer.max_epochs": "the number of epochs, unless early stopping ends training.",
    "trainer.precision": "null for 32 bits, or bf16-mixed or 16-mixed for mixed precision.",
    "callbacks.early_stopping.patience": "training stops after this many validations without a better `monitor`.",
}
"""Descriptions of settings whose classes other libraries document."""


class Setting(NamedTuple):
    """A setting: its value as on the command line, its description, and the argument that it is. A part has no value;
    a setting of a command may be no argument."""

    name: str
    value: str
    meaning: str
    parameter: Parameter | None = None


def help_page(command: str, given: Sequence[str] = (), is_complete: bool = False, positional: str = "") -> str:
    """Return the page of a command with the values that are `given`: all settings if it is complete, else the common
    ones and those that were given."""
    arguments = parse(command, given, positional)
    config: Any = OmegaConf.to_container(compose(command, arguments.overrides, complete=False, with_hydra=True))
    about = config.pop("hydra")
    shown = described = list(explain("", config))
    common = () if is_complete else COMMON.get(command, "").split()
    if common:
        by_name = {setting.name: setting for setting in described if setting.value}
        names = [*common, *(line.lstrip("+").partition("=")[0] for line in arguments.overrides)]
        shown = [by_name[name] for name in dict.fromkeys(names) if name in by_name]
    lines = [about["help"]["header"].strip()]
    chosen = about["runtime"]["choices"]
    groups = find_listed(command, chosen, searchpath(arguments.overrides))
    if groups:
        lines += ["", "Config groups (group=option), the selected option in brackets:", ""]
        for name, options in groups.items():
            marked = (f"[{option}]" if option == chosen[name] else option for option in options)
            lines.append(_wrapped(f"  {name:<17}{'  '.join(marked)}", 19))
    if "experiment" in groups and not common:
        lines += ["", "Experiments (experiment=NAME):", ""]
        lines += [f"  {name}: {purpose('experiment', name)}" for name in groups["experiment"]]
    lines += ["", f"{'Common settings' if common else 'Settings'} (setting=value), with their current values:", ""]
    for setting in shown:
        lines.append(f"  {setting.name}={setting.value}" if setting.value else f"  {setting.name}")
        if setting.meaning:
            lines.append(_wrapped(f"      {setting.meaning}", 6))
    if common:
        lines += ["", f"--help all describes all {len(by_name)} settings."]
    lines += ["", "-m runs several values (seed=1,2), one run for each."]
    lines += ["--cfg job prints the composed configuration; --debug shows the traceback of an error."]
    return "\n".join(lines)


def find_listed(command: str, chosen: Mapping[str, str | None], own: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the config groups that the page of a command lists, and their options.

    Args:
        chosen: the option of each group of the command.
        own: the user's own folders of options.
    """
    found = {}
    for name in reversed(list(chosen)):
        is_shown = "/" not in name or (chosen[name] and name.rpartition("/")[0] in chosen)
        if is_shown and name in GROUPS.get(command, chosen) and not name.startswith("hydra"):
            nested = tuple(f"{other.removeprefix(f'{name}/')}/" for other in chosen)
            found[name] = [option for option in find_options(command, name, own) if not option.startswith(nested)]
    return found


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


def purpose(group: str, option: str) -> str:
    """Return the first line of the comment at the top of an option's YAML."""
    file = Path(config_folders()[0], group, f"{option}.yaml")
    comment = (
        re.search("^# (?!@package)(.*)", file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else None
    )
    return comment[1] if comment else ""


def explain(path: str, node: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield a part and its settings. Arguments of its target are included if they are set or described; a class of
    another library has the descriptions of `OF_LIBRARIES`."""
    signature = Signature()
    is_own = str(node.get(TARGET, "")).startswith("showattendtell.")
    with suppress(SignatureError):
        signature = node_signature(path, node)
        if path and is_own:
            yield Setting(path, "", signature.doc)
    values = {str(key): value for key, value in node.items() if not isinstance(value, Mapping)}
    for key, parameter in signature.parameters.items():
        is_described = parameter.doc if is_own else join(path, key) in OF_LIBRARIES
        if key not in node and parameter.default is not None and is_described:
            values[key] = parameter.value
    for key, value in values.items():
        if not key.startswith("_"):
            argument, name = signature.parameters.get(key), join(path, key)
            meaning = argument.doc if argument and is_own else OF_LIBRARIES.get(name, "")
            yield Setting(name, format_value(value) or "''", meaning, argument)
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from explain(join(path, str(key)), value)
