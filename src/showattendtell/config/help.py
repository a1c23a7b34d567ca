"""`--help`: what a command does, how it is called, and every setting with its meaning."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from showattendtell.config.check import TARGET, join, shown
from showattendtell.config.command_line import SUPPLIED
from showattendtell.config.signature import Parameter, Signature, SignatureError, read_signature

UNKNOWN = Parameter(None, None, "")
"""Of a setting that nothing is said of."""


class Setting(NamedTuple):
    """A setting, its value as the command line takes it, what it means, and the type of its values where that is known;
    of a part, which has no value, what it is."""

    name: str
    value: str
    meaning: str
    annotation: Any


def help_page(config: DictConfig, groups: Mapping[str, list[str]]) -> str:
    """The page for a composed configuration; a setting's meaning is read from the docstring of what it configures."""
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(config.hydra.help.header.strip(), markup=False, soft_wrap=True)
        if groups:
            console.print("\nChoices (group=option), the present one in brackets:\n")
            console.print(_choices(config.hydra.runtime.choices, groups))
        settings: Any = OmegaConf.to_container(config)
        settings.pop("hydra")
        console.print("\nSettings (setting=value), as they stand with these choices:\n")
        for setting in explain("", settings):
            named = f"  {setting.name}={_escaped(setting.value)}" if setting.value else f"  [bold]{setting.name}[/bold]"
            console.print(named, soft_wrap=True)
            if setting.meaning:
                console.print(Padding(setting.meaning, (0, 0, 0, 6)), markup=False)
        console.print(
            "\n-m before several values (decoder.hidden_dim=256,512) runs them all; --cfg job prints all settings."
        )
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def _choices(present: Mapping[str, str | None], groups: Mapping[str, list[str]]) -> Table:
    """A row for each group that the present choices have."""
    table = Table.grid(padding=(0, 2))
    for group, options in groups.items():
        if group in present:
            listed = (f"\\[{option}]" if option == present[group] else option for option in options)
            table.add_row("", group, "  ".join(listed))
    return table


def explain(path: str, node: Mapping[str, Any]) -> Iterator[Setting]:
    """A part and the settings in it; a target's own arguments are among them where they are set or documented."""
    signature = _signature(node)
    parameters = signature.parameters if signature else {}
    if signature and path:
        yield Setting(path, "", signature.doc, None)
    inner = {str(key): value for key, value in node.items() if isinstance(value, Mapping)}
    for key, value in node.items():
        if key not in inner and not str(key).startswith("_"):
            parameter = parameters.get(key, UNKNOWN)
            yield Setting(join(path, str(key)), shown(value), parameter.doc, parameter.annotation)
    for key, parameter in parameters.items():
        if key not in node and parameter.default is not None and parameter.doc and key not in SUPPLIED.get(path, ()):
            value = shown(_literal(parameter.default))
            yield Setting(f"{path}.{key}", value, parameter.doc, parameter.annotation)
    for key, value in inner.items():
        yield from explain(join(path, key), value)


def _literal(source: str) -> Any:
    """The value of a default, or its source where it is an expression."""
    try:
        return ast.literal_eval(source)
    except ValueError:
        return source


def _signature(node: Mapping[str, Any]) -> Signature | None:
    """Of the project's own targets; a library's arguments are in the library's documentation."""
    if not str(node.get(TARGET, "")).startswith("showattendtell."):
        return None
    try:
        return read_signature(node[TARGET])
    except SignatureError:
        return None


def _escaped(value: str) -> str:
    """The brackets of a list kept from rich."""
    return value.replace("[", "\\[")
