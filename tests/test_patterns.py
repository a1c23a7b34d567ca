"""Every regular expression of the package takes linear time, also for the worst letters.

A pattern that is tried at each letter and reads on to the end, or that reads a text in many ways, takes minutes for a
line of 100 kB.
"""

import ast
import itertools
import pkgutil
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import regex  # type: ignore[import-untyped]

import showattendtell
from showattendtell.readers.flickr import read_sentence

SHORT, LONG = 20_000, 100_000
FUNCTIONS = {name: name for name in ("match", "fullmatch", "search", "sub", "split", "findall", "finditer")}
FUNCTIONS["compile"] = "search"
"""Functions of re, and the method to try."""
COMPILED = re.Pattern | regex.Pattern
SAMPLES = ' \t\n\0a0_.A/\\"é左\u0301'
"""Letters of each class that a pattern may name, besides its own letters."""


class Use(NamedTuple):
    """A pattern that is used by one of its methods."""

    pattern: Any
    method: str
    place: str


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(showattendtell.__path__, "showattendtell."):
        if not found.name.endswith("__main__"):
            yield import_module(found.name)


def calls_in(module: ModuleType) -> Iterator[Use]:
    """Yield every call of a function of re and of a pattern's method, as far as it has no local variables."""

    def value_of(node: ast.expr) -> Any:
        return eval(ast.unparse(node), dict(vars(module)))

    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS):
            continue
        method, place = node.func.attr, f"{module.__name__}:{node.lineno}"
        try:
            owner = value_of(node.func.value)
            if owner in (re, regex):
                rest = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
                flags = [value_of(each) for each in rest if ast.unparse(each).startswith(("re.", "regex."))]
                yield Use(owner.compile(value_of(node.args[0]), *flags), method, place)
            elif isinstance(owner, COMPILED):
                yield Use(owner, method, place)
        except NameError:
            continue


def patterns_in(value: Any) -> Iterator[Any]:
    if isinstance(value, COMPILED):
        yield value
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(inner)


@cache
def all_uses() -> list[Use]:
    """Return the uses of all patterns; one of which no use is known is searched for."""
    uses = []
    for module in modules():
        uses += calls_in(module)
        uses += [
            Use(pattern, "compile", module.__name__)
            for value in vars(module).values()
            for pattern in patterns_in(value)
        ]
    used = {use.pattern.pattern for use in uses if use.method != "compile"}
    left = [use for use in uses if use.method != "compile" or use.pattern.pattern not in used]
    return sorted({(use.pattern.pattern, use.method): use for use in left}.values(), key=lambda use: use.place)


def text_of(pattern: Any) -> str:
    text = pattern.pattern
    return text.decode("latin-1") if isinstance(text, bytes) else text


def example_of(node: Iterable[tuple[Any, Any]]) -> str:
    """Return a text that a parsed pattern matches, roughly; what may be repeated is there once at least."""
    found = ""
    for kind, value in node:
        match str(kind):
            case "LITERAL":
                found += chr(value)
            case "IN":
                inside = re.compile(f"[{''.join(_part_of_class(*part) for part in value)}]")
                found += next(filter(inside.match, map(chr, [*range(32, 0x3100), *range(32)])), "\ud800")
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                found += max(1, min(value[0], 9)) * example_of(value[2])
            case "SUBPATTERN":
                found += example_of(value[3])
            case "ATOMIC_GROUP":
                found += example_of(value)
            case "BRANCH":
                found += example_of(value[1][0])
            case "ANY" | "NOT_LITERAL":
                found += "b"
    return found


def _part_of_class(kind: Any, value: Any) -> str:
    match str(kind):
        case "NEGATE":
            return "^"
        case "LITERAL":
            return re.escape(chr(value))
        case "RANGE":
            return "-".join(re.escape(chr(end)) for end in value)
    name = str(value).removeprefix("CATEGORY_")
    letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[name.removeprefix("NOT_")]
    return "\\" + (letter.upper() if name.startswith("NOT_") else letter)


def hostile_texts(pattern: Any, length: int) -> Iterator[str]:
    """Yield long texts: each letter, each pair of letters and each beginning of a match repeated, and each letter
    repeated after the beginning of a match, with an end that does not match."""
    letters = "".join(dict.fromkeys([*text_of(pattern), *SAMPLES]))
    yield from (letter * length + end for letter in letters for end in ("", "\0"))
    yield from ("".join(pair) * (length // 2) for pair in itertools.permutations(letters[:8], 2))
    example = ""
    if isinstance(pattern, re.Pattern):
        example = example_of(parser.parse(text_of(pattern), pattern.flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL)))
    for end in range(1, len(example) + 1):
        start = example[:end]
        yield start * (length // len(start))
        yield from (start + letter * length + "\0" for letter in letters)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` after so many seconds of CPU time; Python's matching looks for signals."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def apply(use: Use, text: str) -> None:
    content: Any = text.encode("latin-1", "replace") if isinstance(use.pattern.pattern, bytes) else text
    if use.method == "sub":
        use.pattern.sub(content[:0], content)
    elif use.method == "finditer":
        list(use.pattern.finditer(content))
    else:
        getattr(use.pattern, FUNCTIONS[use.method])(content)


def assert_linear(use: Use, length: int) -> None:
    for text in hostile_texts(use.pattern, length):
        try:
            with limited(length / LONG):
                apply(use, text)
        except TimeoutError:
            pytest.fail(f"{use.place}: {use.method} of {text_of(use.pattern)!r} takes long for {text[:20]!r}...")


def test_patterns_are_linear_for_the_worst_letters():
    uses = all_uses()
    assert len(uses) > 30
    for use in uses:
        assert_linear(use, SHORT)


@pytest.mark.slow
def test_patterns_are_linear_for_long_texts():
    for use in all_uses():
        assert_linear(use, LONG)


WORDS = {"[/EN#0/": 1, "[/EN#0/a x]": 1, "[": 0}
"""Numbers of words of pieces of an annotated sentence, however often they are repeated."""

WORDS_EACH = {"[/EN#0/a ": 1, "[/EN#0/a x] y ": 2}
"""The same of other pieces, in each of them."""


@pytest.mark.parametrize("piece", [*WORDS, *WORDS_EACH])
def test_an_annotated_sentence_is_read_in_linear_time(piece: str):
    number = LONG // len(piece)
    with limited(1.0):
        words, _ = read_sentence(piece * number)
    assert len(words) == (WORDS[piece] if piece in WORDS else WORDS_EACH[piece] * number)
