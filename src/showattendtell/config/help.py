"""`--help`: what a command does, how it is called, and every setting with its meaning."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from showattendtell.config.check import TARGET
from showattendtell.config.signature import Signature, SignatureError, read_signature


def help_page(name: str, config: DictConfig, groups: Mapping[str, list[str]]) -> str:
    """The page for a composed configuration; a setting's meaning is read from the docstring of what it configures."""
    usage = config.hydra.help.header.strip()
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(usage, markup=False, soft_wrap=True)
        if groups:
            console.print("\nChoices (group=option), the present one in brackets:")
            console.print(_choices(config, groups))
        settings: Any = OmegaConf.to_container(config)
        settings.pop("hydra")
        console.print("\nSettings (name=value), as they stand with the choices above:")
        console.print(_settings(settings))
        console.print(
            "\n-m before several values (attention=soft,hard) runs them all; --cfg job prints the configuration."
        )
    return capture.get().rstrip()


def _choices(config: DictConfig, groups: Mapping[str, list[str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for group, options in groups.items():
        present = config.hydra.runtime.choices[group]
        table.add_row(f"  {group}", "  ".join(f"\\[{o}]" if o == present else o for o in options))
    return table


def _settings(settings: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value, doc in _rows("", settings):
        table.add_row(f"  {name}", value, doc)
    return table


def _rows(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(setting, value, meaning); a target's own arguments are shown where they are set or documented."""
    signature = _signature(node)
    if signature:
        yield path, "", f"[bold]{signature.doc}[/bold]"
    for key, value in node.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _rows(name, value)
        elif not str(key).startswith("_"):
            doc = signature.parameters[key].doc if signature and key in signature.parameters else ""
            yield name, _shown(value), doc
    for key, parameter in (signature.parameters if signature else {}).items():
        if key not in node and parameter.default is not None and parameter.doc:
            yield f"{path}.{key}", _shown(parameter.default.strip("'\"")), parameter.doc


def _signature(node: Mapping[str, Any]) -> Signature | None:
    """Of the project's own targets; a library's arguments are in the library's documentation."""
    if not str(node.get(TARGET, "")).startswith("showattendtell."):
        return None
    try:
        return read_signature(node[TARGET])
    except SignatureError:
        return None


def _shown(value: Any) -> str:
    text = "null" if value in (None, "None") else str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("[", "\\[")
