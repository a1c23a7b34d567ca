"""The names in docstrings are those in the code."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from repository import ROOT

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NAMES = r"\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*"
"""Several names may share an explanation, as in `num_train, num_val: images per split`."""

Classes = Mapping[str, ast.ClassDef]


def in_section(docstring: str, heading: str) -> list[str]:
    """The names that are explained under a heading."""
    found = re.search(rf"^{heading}:\n((?: .*\n?|\n)+)", docstring, re.MULTILINE)
    return split(re.findall(rf"^ {{4}}({NAMES}):", found[1], re.MULTILINE)) if found else []


def without_section(docstring: str) -> list[str]:
    """The names of a list without a heading, each before a colon or two spaces."""
    _, _, rest = docstring.partition("\n\n")
    return split(re.findall(rf"^({NAMES})(?:: |  )", rest, re.MULTILINE))


def split(entries: list[str]) -> list[str]:
    return [name.strip("*") for entry in entries for name in entry.split(", ")]


def public(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """The public functions and classes, also those in classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition) and (not node.name.startswith("_") or node.name == "__call__"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{node.name}.")


def parameters(definition: Definition, classes: Classes) -> set[str]:
    """The parameters of a function; of a class those of its constructor, its fields, and those of its base classes."""
    if not isinstance(definition, ast.ClassDef):
        given = definition.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return {argument.arg for argument in every if argument} - {"self", "cls"}
    names = fields(definition)
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names |= parameters(node, classes)
    for base in definition.bases:
        name = re.sub(r"\[.*", "", ast.unparse(base))
        if name in classes:
            names |= parameters(classes[name], classes)
    return names


def fields(definition: ast.ClassDef) -> set[str]:
    annotated = [node.target for node in definition.body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in annotated if isinstance(target, ast.Name)}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    files = sorted((ROOT / "src").rglob("*.py"))
    return {file.relative_to(ROOT): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@pytest.fixture(scope="module")
def classes(trees: dict[Path, ast.Module]) -> Classes:
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def test_every_argument_in_a_docstring_is_a_parameter(trees: dict[Path, ast.Module], classes: Classes):
    unknown, number = [], 0
    for path, tree in trees.items():
        for label, node in public(tree):
            known = parameters(node, classes)  # none of a class whose parameters are those of another package
            names = in_section(ast.get_docstring(node) or "", "Args") if known else []
            unknown += [f"{path}: {label}: {name}" for name in names if name not in known]
            number += len(names)
    assert unknown == []
    assert number > 500


def test_every_field_in_a_docstring_is_one_of_the_class(trees: dict[Path, ast.Module], classes: Classes):
    unknown, number = [], 0
    for path, tree in trees.items():
        for label, node in public(tree):
            if isinstance(node, ast.ClassDef) and fields(node):
                docstring = ast.get_docstring(node) or ""
                names = [*in_section(docstring, "Attributes"), *without_section(docstring)]
                unknown += [f"{path}: {label}: {name}" for name in names if name not in parameters(node, classes)]
                number += len(names)
    assert unknown == []
    assert number > 200
