"""Every command of the documentation is one, and is either run by a test or listed with the reason."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from documentation import PAGES, ROOT, Documented, as_settings, mentioned, read, typed
from example_folder import write_module
from not_run import REASONS, reason
from slow_cases import slow_after

from showattendtell.config.compose import compose

TYPED = [command for page in PAGES for command in typed(page)]
MENTIONED = [command for page in PAGES for command in mentioned(page)]


def lines(commands: Iterable[Documented]) -> list[str]:
    return sorted({command.line for command in commands})


COMMANDS = lines(command for command in [*TYPED, *MENTIONED] if read(command.line))
OF_README = lines(command for command in typed(ROOT / "README.md") if read(command.line))


@pytest.mark.parametrize(
    "line", slow_after(len(OF_README), [*OF_README, *(line for line in COMMANDS if line not in OF_README)])
)
def test_a_command_of_the_documentation_is_one_and_takes_what_it_is_given(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = read(line)
    assert command
    if command.name != "demo":
        compose(command.name, as_settings(command), complete=False)


def test_a_documented_line_is_run_or_listed():
    assert [line for line in lines(TYPED) if not read(line) and not reason(line)] == []


def test_what_is_listed_is_documented():
    typed_lines = "\n".join(lines(TYPED))
    assert [pattern for pattern in REASONS if not re.search(pattern, typed_lines, re.MULTILINE)] == []


def test_a_documented_target_or_recipe_of_make_is_there():
    makefile = (ROOT / "Makefile").read_text()
    for _, first, *rest in (line.split() for line in lines(TYPED) if line.startswith("make ")):
        if first == "-f":
            assert (ROOT / rest[0]).is_file()
        else:
            assert re.search(rf"^{first}:", makefile, flags=re.MULTILINE), first


def test_a_documented_benchmark_is_there():
    for line in (line for line in lines(TYPED) if line.startswith("python -m benchmarks")):
        named = re.sub(r"^python -m benchmarks[.]?| --\w+.*", "", line).split()
        assert [name for name in named if not (ROOT / f"benchmarks/{name}.py").is_file()] == []
