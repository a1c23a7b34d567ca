"""Signatures read from source, held against those of the imported objects."""

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pydantic import TypeAdapter

from showattendtell.config.instantiate import locate
from showattendtell.config.signatures import SOURCES, SignatureError, read_signature
from showattendtell.config.validation import targets_in_conf
from showattendtell.features.extract import EngineName, Precision

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

DEFINITIONS = """
    from dataclasses import dataclass
    from typing import ClassVar, NamedTuple

    from pydantic.dataclasses import dataclass as validated

    from .elsewhere import Faraway, Faraway as Renamed

    class Plain:
        def __init__(self, first, second: int = 2, *rest, third: str = "3", **others): ...

        @classmethod
        def made(cls, source, size: int = 1): ...

        @staticmethod
        def loose(source, size: int = 1): ...

    class Inheriting(Plain): ...

    class InheritingFromElsewhere(Faraway): ...

    class Fields(NamedTuple):
        width: int
        height: int = 3

    @dataclass
    class Data:
        width: int
        height: int = 3
        shared: ClassVar[int] = 4

    @validated
    class Validated:
        width: int
        height: int = 3

    class Delegating(Plain):
        __init__ = Plain.__init__

    def function(one, /, two, *, three=3): ...

    if True:
        def conditional(four=4): ...
"""

ELSEWHERE = """
    class Faraway:
        def __init__(self, distance: float = 1.0): ...
"""


def assert_agrees(target: str) -> None:
    """Names in order, which have a default, and whether others are let through."""
    real = inspect.signature(locate(target)).parameters.values()
    read = read_signature(target)
    expected = {p.name: p.default is not inspect.Parameter.empty for p in real if p.kind not in VARIADIC}
    assert {name: parameter.default is not None for name, parameter in read.parameters.items()} == expected
    assert list(read.parameters) == list(expected), target
    assert read.open == any(p.kind is inspect.Parameter.VAR_KEYWORD for p in real)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An importable package with many kinds of definitions."""
    folder = tmp_path / "manykinds"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .definitions import Plain as Again\n")
    (folder / "definitions.py").write_text(dedent(DEFINITIONS))
    (folder / "elsewhere.py").write_text(dedent(ELSEWHERE))
    monkeypatch.syspath_prepend(tmp_path)
    yield "manykinds"
    for name in [name for name in sys.modules if name.partition(".")[0] == "manykinds"]:
        del sys.modules[name]
    read_signature.cache_clear()
    SOURCES.members.clear()


def test_every_target_in_conf_reads_as_it_imports():
    """But those of searches, which are Optuna's and Hydra's."""
    targets = {target for target in targets_in_conf() if not target.startswith(("optuna.", "hydra_plugins."))}
    assert len(targets) > 30
    for target in targets:
        assert_agrees(target)
        if target.startswith("showattendtell."):
            assert_same_types(target)


def assert_same_types(target: str) -> None:
    thing: Any = locate(target)
    constructor = getattr(thing, "__init__", None)
    hints = typing.get_type_hints(constructor if inspect.isfunction(constructor) else thing, include_extras=True)
    for name, parameter in read_signature(target).parameters.items():
        if parameter.annotation is not Any and typing.get_origin(hints[name]) is not Callable:
            read, imported = (TypeAdapter(each).json_schema() for each in (parameter.annotation, hints[name]))
            assert read == imported, (target, name)


@pytest.mark.parametrize(
    "name",
    [
        "definitions.Plain",
        "definitions.Plain.made",
        "definitions.Plain.loose",
        "definitions.Inheriting",
        "definitions.InheritingFromElsewhere",
        "definitions.Fields",
        "definitions.Data",
        "definitions.Validated",
        "definitions.Delegating",
        "definitions.function",
        "definitions.conditional",
        "definitions.Renamed",
        "Again",
        "Again.made",
    ],
)
def test_definitions_of_every_kind_read_as_they_import(package: str, name: str):
    assert_agrees(f"{package}.{name}")


def test_a_type_that_another_module_of_the_package_names_is_known():
    parameters = read_signature("showattendtell.features.extract.Extraction").parameters
    assert (parameters["precision"].annotation, parameters["engine"].annotation) == (Precision, EngineName)


@pytest.mark.parametrize(
    ("imports", "annotation"),
    [
        ("from .turning import Loop", "Loop"),
        ("from .nowhere import Loop", "Loop"),
        ("from . import definitions", "definitions.Kind"),
        ("from decimal import Decimal", "Decimal"),
        ("from .wrong import Unread", "Unread"),
    ],
)
def test_types_that_cannot_be_reported_without_importing_are_unknown(
    package: str, tmp_path: Path, imports: str, annotation: str
):
    folder = tmp_path / package
    (folder / "wrong.py").write_text('Unread = int("many")\n')
    (folder / "turning.py").write_text("from .asking import Loop\n")
    (folder / "asking.py").write_text(f"{imports}\ndef ask(what: {annotation}): ...\n")
    assert read_signature(f"{package}.asking.ask").parameters["what"].annotation is Any


def test_a_type_that_is_only_known_in_part_is_not_taken_for_a_narrower_one():
    annotation = read_signature("pytorch_lightning.Trainer").parameters["precision"].annotation
    assert TypeAdapter(annotation).validate_python("bf16-mixed") == "bf16-mixed"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nosuchpackage.Thing", "nosuchpackage"),
        ("showattendtell.models.decoder.LSTMDecodr", "LSTMDecodr"),
        ("showattendtell.models.decodr.LSTMDecoder", "decodr"),
        ("showattendtell.text.vocabulary.Vocabulary.bild", "bild"),
        ("showattendtell.models.decoder", "is not a class or function"),
        ("showattendtell", "is not a class or function"),
        ("__main__.main", "there is no package __main__"),
        ("", "there is no package"),
        (".", "there is no package"),
        ("os.system", "os"),
        ("sys.exit", "sys"),
        ("math.sqrt", "math"),
    ],
)
def test_a_target_without_python_source_is_reported(target: str, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in a script
    with pytest.raises(SignatureError, match=message):
        read_signature(target)


def test_a_syntax_error_in_a_module_of_the_user_is_reported_with_its_line(package: str, tmp_path: Path):
    (tmp_path / package / "broken.py").write_text("import math\ndef f(:\n")
    with pytest.raises(SignatureError, match=r"broken\.py, line 2: invalid syntax$"):
        read_signature(f"{package}.broken.Thing")


def test_documentation_is_read_from_the_docstring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "documented.py").write_text(
        dedent('''
            class Documented:
                """What it is,
                in two lines.

                A second paragraph: not part of it.

                Args:
                    width: how wide,
                        and how so.
                    mean, std: both.

                See: elsewhere
                """

                def __init__(self, width, mean, std, other): ...
        ''')
    )
    monkeypatch.syspath_prepend(tmp_path)
    signature = read_signature("documented.Documented")
    assert signature.doc == "What it is, in two lines."
    described = {name: parameter.doc for name, parameter in signature.parameters.items()}
    assert described == {"width": "how wide, and how so.", "mean": "both.", "std": "both.", "other": ""}
