"""The reference of commands and config groups, generated from the YAML of conf/ and the signatures, like `--help`."""

import ast
import html
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

import showattendtell
from showattendtell import metrics
from showattendtell.__main__ import COMMANDS
from showattendtell.config.command_line import config_folders
from showattendtell.config.compose import compose, read_command
from showattendtell.config.help import Setting, explain, find_listed

RECIPES = ("experiment", "sweep", "variant")
"""Groups whose options set settings of other groups."""


CLASSES = {
    "Data modules": (
        "datamodules.datamodule",
        tuple(f"{name}DataModule" for name in ("Shapes", "Flickr8k", "Flickr30k", "Coco", "Custom", "Reader")),
    ),
    "Training": ("training.module", ("CaptioningModule",)),
    "Inference": ("inference.pipeline", ("load", "CaptioningPipeline")),
    "Captions": ("visualization.pages", ("ImageCaptions",)),
    "Attention": (
        "models.attention",
        ("SoftAttention", "AdaptiveAttention", "MeanAttention"),
    ),
    "Hard attention": ("models.hard_attention", ("HardAttention",)),
    "Attention scores": ("models.scores", ()),
    "Base classes": ("models.interfaces", ("Attention", "StepAttention", "Decoder")),
    "Recurrent decoders": ("models.decoder", ("RecurrentDecoder", "LSTMDecoder")),
    "Encoder": ("models.encoder", ("Encoder",)),
    "Tokenizers": (
        "text.tokenizers",
        ("Tokenizer", "PlainTokenizer", "WordTokenizer", "CharacterTokenizer", "SubwordTokenizer"),
    ),
    "Loss of soft attention": ("losses.caption", ("SoftLoss",)),
    "Loss of hard attention": ("losses.reinforce", ("HardLoss",)),
    "Beam search": ("decoding.beam_search", ("BeamSearch",)),
    "Metrics": ("metrics.classes", tuple(metrics.__all__)),
}
"""The page of each part of the Python API: its module, and its documented names, or () for all its classes."""

EXTENSIONS = Path(showattendtell.__file__).parent / "extensions"
for _file in sorted(EXTENSIONS.glob("*/[!_]*.py")):
    _name = f"{_file.parent.name}.{_file.stem}"
    CLASSES[f"Extension {_name}"] = (f"extensions.{_name}", ())


@cache
def reference_pages() -> dict[str, str]:
    """The Markdown of each page by its path under docs/."""
    groups = find_listed(read_command("train", [])[0].hydra.runtime.choices)
    pages = {f"reference/commands/{name}.md": _command_page(name, groups) for name in COMMANDS}
    pages |= {f"reference/{_page(group)}": _group_page(group, options) for group, options in groups.items()}
    for title, (module, names) in CLASSES.items():
        if names or _classes(module):
            pages[f"reference/api/{module}.md"] = _api_page(title, module)
    return pages


def _api_page(title: str, module: str) -> str:
    """A page that mkdocstrings fills from the docstrings."""
    names = CLASSES[title][1] or _classes(module)
    blocks = [f"::: showattendtell.{module}.{name}" for name in names]
    return "\n\n".join([f"# {title}", *blocks]) + "\n"


def _classes(module: str) -> list[str]:
    """The public classes of a module in the order of its source."""
    file = Path(showattendtell.__file__).parent / f"{module.replace('.', '/')}.py"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def _page(group: str) -> str:
    return f"choices/{group.replace('/', '-')}.md"


def _command_page(name: str, shared: Mapping[str, list[str]]) -> str:
    """Usage, config groups and settings; the settings of an option are on the page of its group."""
    if not any(Path(folder, f"{name}.yaml").is_file() for folder in config_folders()):
        return f"# {name}\n\n`showattendtell {name}`: {COMMANDS[name]}. It takes no settings.\n"
    config = read_command(name, [], complete=False)[0]
    chosen: Any = config.hydra.runtime.choices
    groups = find_listed(chosen)
    usage, *about = config.hydra.help.header.strip().split("\n\n")
    settings: Any = OmegaConf.to_container(config)
    for part in ("hydra", *(group for group in groups if group in shared)):
        settings.pop(part, None)
    text = [f"# {name}", *_paragraphs([usage, *about])]
    if groups:
        rows = [
            (f"[`{group}`](../{_page(group)})" if group in shared else f"`{group}`", _options(options, chosen[group]))
            for group, options in groups.items()
            if group in chosen
        ]
        text += ["## Config groups", "`group=option`; the default is in bold.", _table(["group", "options"], rows)]
    return "\n\n".join([*text, "## Settings", *_settings(explain("", settings))]) + "\n"


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Indented lines as a block of commands, other lines as text."""
    for text in texts:
        lines = text.splitlines()
        heads = [line for line in lines if not line.startswith("  ")]
        blocks = [line.strip() for line in lines if line.startswith("  ")]
        if heads:
            yield html.escape(" ".join(heads), quote=False).replace("[", "\\[")  # no link
        if blocks:
            yield "```text\n" + "\n".join(blocks) + "\n```"


def _options(options: Iterable[str], present: str | None) -> str:
    return " ".join(f"**`{option}`**" if option == present else f"`{option}`" for option in options)


def _group_page(group: str, options: Iterable[str]) -> str:
    text = [f"# {group}", f"`{group}=...` of [`train`](../commands/train.md)."]
    for option in options:
        text += [f"## {option}", *_option(group, option)]
    return "\n\n".join(text) + "\n"


def _option(group: str, option: str) -> Iterator[str]:
    """Its YAML comment and its settings; for options that set settings of other groups, the YAML itself."""
    folders = [Path(folder, group) for folder in config_folders()]
    file = next(folder / f"{option}.yaml" for folder in folders if (folder / f"{option}.yaml").is_file())
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("# ") for line in lines if line.startswith("#") and not line.startswith("# @package")]
    body = [line for line in lines if not line.startswith("#")]
    if comment:
        yield html.escape(" ".join(comment), quote=False)
    if group in RECIPES or group.startswith("hydra"):
        yield "```yaml\n" + "\n".join(body) + "\n```"
        return
    config = compose("train", [f"{group}={option}"], complete=False)
    path = group.replace("/", ".")
    part = OmegaConf.to_container(OmegaConf.select(config, path)) if OmegaConf.select(config, path) else {}
    yield from _settings(explain(path, part))  # type: ignore[arg-type]


def _settings(settings: Iterable[Setting]) -> Iterator[str]:
    """A table for each component, below its description."""
    rows: list[tuple[str, ...]] = []
    for setting in settings:
        if setting.value:
            values = _takes(setting.parameter.annotation if setting.parameter else Any)
            cells = (f"`{setting.name}`", f"`{setting.value}`", values, setting.meaning)
            rows.append(tuple(map(_cell, cells)))
            continue
        if rows:
            yield _settings_table(rows)
            rows = []
        yield f"**`{setting.name}`**: {html.escape(setting.meaning, quote=False)}"
    if rows:
        yield _settings_table(rows)


def _settings_table(rows: Iterable[Iterable[str]]) -> str:
    """A table of settings, which the style sheet shows as a list on a narrow screen."""
    table = _table(["setting", "default", "values", "meaning"], rows)
    return f'<div class="settings" markdown>\n\n{table}\n\n</div>'


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|") if "`" not in text else text.replace("|", "\\|")


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _takes(annotation: Any) -> str:
    """The values of a type in words; empty if pydantic has no schema for it."""
    try:
        return _in_words(TypeAdapter(annotation).json_schema())
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        return ""


BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}


def _in_words(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_in_words, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_in_words(schema['items'])}" if "items" in schema else "list"
    bounds = [f"{word} {schema[key]:g}" for key, word in BOUNDS.items() if key in schema]
    return " ".join([NAMES.get(schema.get("type", ""), ""), *bounds]).strip()
