"""The pages of `--help` and `--help all`. Descriptions of settings are those in the docstrings of the configured
classes."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from showattendtell.config.command_line import SUPPLIED
from showattendtell.config.compose import LAUNCHER, SEARCH, purpose
from showattendtell.config.signatures import Parameter, Signature, SignatureError, read_signature
from showattendtell.config.validation import TARGET, format_value, join

COMMON = {
    "train": (
        *("dataset.root", "seed", "init_from", "resume", "monitor", "cache", "data.batch_size", "vocabulary.size"),
        *(
            "encoder.trainable",
            "decoder.hidden_dim",
            "decoder.dropout",
            "loss.doubly_stochastic_weight",
            "optimizer.lr",
        ),
        *("trainer.max_epochs", "trainer.precision", "trainer.devices", "callbacks.early_stopping.patience"),
    ),
    "prepare": (
        *("dataset.root", "dataset.skip_unreadable", "cache", "encoder.size", "encoder.resize", "encoder.crop_mode"),
        *("features.workers", "features.dtype", "features.precision", "features.engine"),
        "features.views",
    ),
    "evaluate": (
        *("checkpoint", "split", "metrics", "language", "output", "device", "decoding.beam_size"),
        *("decoding.precision", "dataset.root", "dataset.entities", "dataset.instances"),
    ),
    "caption": (
        *("checkpoint", "images", "split", "number", "compare", "formats", "overwrite", "output", "resume"),
        *("workers", "device", "language", "decoding.beam_size"),
        *("decoding.max_length", "decoding.prefix", "decoding.required", "decoding.forbidden", "dataset.root"),
    ),
    "serve": ("checkpoint", "compare", "host", "port", "device", "decoding.beam_size", "limits.megapixels"),
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
    """A setting: its value as on the command line, its description, and the argument that it is. A part has a
    description and no value; a setting of a command may be no argument."""

    name: str
    value: str
    meaning: str
    parameter: Parameter | None = None


def help_page(name: str, config: DictConfig, groups: Mapping[str, list[str]], common: Collection[str] = ()) -> str:
    """Return the page of a command.

    Args:
        name: the command.
        config: its composed configuration.
        groups: the options of each config group.
        common: the settings to describe, in this order; by default all, and each experiment.
    """
    present = config.hydra.runtime.choices
    visible = [group for group in GROUPS.get(name, groups) if group in present]
    has_sweeps = SEARCH in visible
    settings: Any = OmegaConf.to_container(config)
    settings.pop("hydra")
    described = list(explain("", settings))
    chosen = [
        described_setting
        for key in common
        for described_setting in described
        if described_setting.name == key and described_setting.value
    ] or described

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(config.hydra.help.header.strip(), markup=False, soft_wrap=True)
        options = {group: groups[group] for group in visible if group != LAUNCHER or has_sweeps}
        if options:
            console.print("\nConfig groups (group=option), the selected option in brackets:\n")
            console.print(_table({group: _marked(names, present[group]) for group, names in options.items()}))
        if "experiment" in options and not common:
            console.print("\nExperiments (experiment=NAME):\n")
            console.print(_table({option: purpose("experiment", option) for option in groups["experiment"]}))
        console.print(f"\n{'Common settings' if common else 'Settings'} (setting=value), with their current values:\n")
        for setting in chosen:
            head = f"{setting.name}={escape(setting.value)}" if setting.value else f"[bold]{setting.name}[/bold]"
            console.print(f"  {head}", soft_wrap=True)
            if setting.meaning:
                console.print(Padding(setting.meaning, (0, 0, 0, 6)), markup=False)
        if common:
            number = sum(bool(setting.value) for setting in described)
            experiments = ", and what each experiment is for" if "experiment" in options else ""
            console.print(f"\n--help all describes all {number} settings{experiments}.")
        if has_sweeps:
            console.print("\n-m runs several values (decoder.hidden_dim=256,512), one run for each.")
        console.print(
            "\n--cfg job prints the composed configuration; --debug shows the traceback of an error.", soft_wrap=True
        )
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def _marked(options: Sequence[str], present: str | None) -> str:
    return "  ".join(f"[{option}]" if option == present else option for option in options)


def _table(rows: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row("", name, escape(text))
    return table


def explain(path: str, node: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield a part and its settings. Arguments of its target are included if they are set or described; a class of
    another library has the descriptions of `OF_LIBRARIES`."""
    signature = Signature({}, False, "")
    is_own = str(node.get(TARGET, "")).startswith("showattendtell.")
    with suppress(SignatureError):
        signature = read_signature(str(node.get(TARGET, "")))
        if path and is_own:
            yield Setting(path, "", signature.doc)
    inner = {str(key): value for key, value in node.items() if isinstance(value, Mapping)}
    unset = [key for key in signature.parameters if key not in node and key not in SUPPLIED.get(path, ())]
    for key in [*(str(key) for key in node if key not in inner and not str(key).startswith("_")), *unset]:
        parameter, name = signature.parameters.get(key), join(path, key)
        meaning = parameter.doc if parameter and is_own else OF_LIBRARIES.get(name, "")
        if key in node:
            yield Setting(name, format_value(node[key]) or "''", meaning, parameter)
        elif parameter and parameter.default is not None and meaning:
            default: Any = parameter.default
            with suppress(ValueError):  # an expression stays as it is
                default = ast.literal_eval(default)
            yield Setting(name, format_value(default) or "''", meaning, parameter)
    for key, value in inner.items():
        yield from explain(join(path, key), value)
