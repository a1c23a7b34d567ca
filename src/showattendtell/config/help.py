"""The pages of `--help`. Descriptions of settings are those in the docstrings of the configured classes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template
from omegaconf import OmegaConf

from showattendtell.config.command_line import config_folders, find_options, parse, searchpath
from showattendtell.config.compose import read_command
from showattendtell.config.signatures import Parameter, Signature, SignatureError
from showattendtell.config.validation import TARGET, node_signature
from showattendtell.settings import format_value, join

TEMPLATE = Path(__file__).with_name("help.txt")

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


def help_page(command: str, given: Sequence[str] = (), positional: str = "") -> str:
    """Return the page of a command, with the values that are `given`."""
    overrides = parse(command, given, positional).overrides
    config: Any = OmegaConf.to_container(read_command(command, overrides, complete=False)[0])
    about = config.pop("hydra")
    chosen = about["runtime"]["choices"]
    groups = find_listed(chosen, searchpath(overrides))
    experiments = {name: purpose("experiment", name) for name in groups.get("experiment", ())}
    marked = {
        name: [f"[{option}]" if option == chosen[name] else option for option in options]
        for name, options in groups.items()
    }
    page = Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
    header = about["help"]["header"].strip()
    return page.render(header=header, groups=marked, experiments=experiments, settings=explain("", config))


def find_listed(chosen: Mapping[str, str | None], own: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the config groups that the page of a command lists, and their options.

    Args:
        chosen: the option of each group of the command.
        own: the user's own folders of options.
    """
    found = {}
    for name in reversed(list(chosen)):
        is_shown = "/" not in name or (chosen[name] and name.rpartition("/")[0] in chosen)
        if is_shown and not name.startswith("hydra"):
            nested = tuple(f"{other.removeprefix(f'{name}/')}/" for other in chosen)
            found[name] = [option for option in find_options(name, own) if not option.startswith(nested)]
    return found


def purpose(group: str, option: str) -> str:
    """Return the first line of the comment at the top of an option's YAML."""
    file = Path(config_folders()[0], group, f"{option}.yaml")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((line[2:] for line in lines if line.startswith("# ") and "@package" not in line), "")


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
