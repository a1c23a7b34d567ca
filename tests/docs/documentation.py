"""What the documentation has a user type: lines of its unlabelled blocks, and commands within its text."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from showattendtell.cli import COMMANDS
from showattendtell.config.entry import name_positional, without_dashes
from showattendtell.config.reproducing import quote_settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("", "bash", "console", "sh")


class Documented(NamedTuple):
    """A command line, and the page that it stands on."""

    page: Path
    line: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.line}"


class Command(NamedTuple):
    """One of the package's, and its arguments as they are typed."""

    name: str
    arguments: list[str]


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCED.findall(page.read_text(encoding="utf-8")) if language in languages]


def typed(page: Path) -> list[Documented]:
    """Every line of the page's blocks of commands, without the comment behind two spaces; of a `console` block those
    behind its prompt."""
    lines: list[str] = []
    for language, body in FENCED.findall(page.read_text(encoding="utf-8")):
        if language in SHELL:
            whole = body.replace("\\\n", " ").splitlines()
            lines += [line[2:] for line in whole if line.startswith("$ ")] if language == "console" else whole
    bare = (re.split(r"  +#|^#", line)[0].strip() for line in lines)
    return [Documented(page, line) for line in bare if line]


def mentioned(page: Path) -> list[Documented]:
    """The package's commands between backquotes, also without the `python -m showattendtell.` before them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    bare = re.compile(rf"({'|'.join(COMMANDS)}) (\S+=|--help|runs/)")
    lines = [f"python -m showattendtell.{span}" if bare.match(span) else span for span in spans]
    return [Documented(page, line) for line in lines if read(line)]


def read(line: str) -> Command | None:
    """The package's command in a line, whatever starts it; None where there is none."""
    found = re.search(r"(?:-m showattendtell\.|^(?:\.venv/bin/)?showattendtell )(\w+)(.*)", line)
    if not found or found[1] not in COMMANDS:
        return None
    return Command(found[1], [argument for argument in shlex.split(found[2]) if argument != "..."])


def variables(line: str) -> dict[str, str]:
    """Those of the environment that are set before a command."""
    words = shlex.split(line)
    before = words[: next((number for number, word in enumerate(words) if "=" not in word), 0)]
    return dict(word.split("=", 1) for word in before)


def as_settings(command: Command) -> list[str]:
    """The arguments as the command itself names them, `--name value` and those without a name included."""
    arguments = [argument for argument in without_dashes(command.arguments) if argument not in ("-h", "--help")]
    if command.name == "reproduce":
        return quote_settings(arguments)
    positional = re.search(r'positional="(\w+)"', module(command.name).read_text(encoding="utf-8"))
    return name_positional(arguments, positional[1]) if positional else arguments


def module(name: str) -> Path:
    package = ROOT / "src/showattendtell"
    return next(file for file in (package / f"{name}.py", package / name / "__main__.py") if file.is_file())
