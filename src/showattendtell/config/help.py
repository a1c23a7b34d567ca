"""The page of `--help`: purpose and usage of a command, and every setting with its description."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from showattendtell.config.command_line import SUPPLIED
from showattendtell.config.signatures import Parameter, Signature, SignatureError, read_signature
from showattendtell.config.validation import TARGET, format_value, join

UNKNOWN = Parameter(None, None, "")
"""The parameter of an undocumented setting."""


class Setting(NamedTuple):
    """A setting: its value as on the command line, its description, and its type if known. A part has a description and
    no value."""

    name: str
    value: str
    meaning: str
    annotation: Any


def help_page(config: DictConfig, groups: Mapping[str, list[str]]) -> str:
    """Return the page for a composed configuration. Descriptions come from the docstrings of the configured classes."""
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
    """Return a row for each config group that the present choices have."""
    table = Table.grid(padding=(0, 2))
    for group, options in groups.items():
        if group in present:
            listed = (f"\\[{option}]" if option == present[group] else option for option in options)
            table.add_row("", group, "  ".join(listed))
    return table


def explain(path: str, node: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield a part and its settings. Arguments of its target are included if they are set or documented."""
    signature = _signature(node)
    parameters = signature.parameters if signature else {}
    if signature and path:
        yield Setting(path, "", signature.doc, None)
    inner = {str(key): value for key, value in node.items() if isinstance(value, Mapping)}
    for key, value in node.items():
        if key not in inner and not str(key).startswith("_"):
            parameter = parameters.get(key, UNKNOWN)
            yield Setting(join(path, str(key)), format_value(value), parameter.doc, parameter.annotation)
    for key, parameter in parameters.items():
        if key not in node and parameter.default is not None and parameter.doc and key not in SUPPLIED.get(path, ()):
            value = format_value(_literal(parameter.default))
            yield Setting(f"{path}.{key}", value, parameter.doc, parameter.annotation)
    for key, value in inner.items():
        yield from explain(join(path, key), value)


def _literal(source: str) -> Any:
    """Return the value of a default, or its source if it is an expression."""
    try:
        return ast.literal_eval(source)
    except ValueError:
        return source


def _signature(node: Mapping[str, Any]) -> Signature | None:
    """Return the signature of a target of this project; None for others, which their libraries document."""
    if not str(node.get(TARGET, "")).startswith("showattendtell."):
        return None
    try:
        return read_signature(node[TARGET])
    except SignatureError:
        return None


def _escaped(value: str) -> str:
    """Escape the brackets of a list, which rich would read as markup."""
    return value.replace("[", "\\[")
