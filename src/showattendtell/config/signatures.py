"""Read the signature of a class or function from its source, without importing it: importing torch takes seconds, too
long for an error message about a setting. griffe parses the modules; names are followed from one to the next here."""

import ast
import builtins
import collections.abc
import importlib.util
import typing
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import griffe

from showattendtell import settings


@dataclass(frozen=True)
class Parameter:
    """An argument: its annotation and its default as source, its description, and the module that defines it."""

    source: str | None
    default: str | None
    doc: str
    module: griffe.Module

    @cached_property
    def annotation(self) -> Any:
        """The type; None if there is none, or if it is unknown without an import."""
        return None if self.source is None else _evaluate(self.module, self.source, frozenset())

    @property
    def value(self) -> Any:
        """The default as plain data; an expression as its source."""
        with suppress(ValueError):
            return ast.literal_eval(str(self.default))
        return self.default


class Signature(NamedTuple):
    """The arguments by name, whether any others are accepted (`**kwargs`), and the docstring's first paragraph."""

    parameters: dict[str, Parameter]
    open: bool
    doc: str


class SignatureError(Exception):
    """Raised if the target does not exist."""


@cache
def read_signature(target: str) -> Signature:
    """Return the signature of `package.module.Class`, `package.module.function` or `package.module.Class.method`.

    Raises:
        SignatureError: if it does not exist.
    """
    return _signature(_definition(*_find_module(target)))


def _find_module(target: str) -> tuple[griffe.Module, list[str]]:
    """Return the longest prefix that is a module, and the remaining names."""
    path, parents, names = _find_file(target)
    return _parse(path, parents), names


def _find_file(target: str) -> tuple[Path, tuple[str, ...], list[str]]:
    """Return the file of the longest prefix that is a module, the names of that prefix, and the remaining names."""
    first, *names = target.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:
        spec = None
    if spec is None or spec.origin is None:
        raise SignatureError(f"there is no package {first or target}")
    if not spec.origin.endswith(".py"):
        raise SignatureError(f"{first} has no Python source, and may not be called")
    path, parents = Path(spec.origin), [first]
    while names and path.name == "__init__.py":
        below = path.parent / names[0]
        existing = [file for file in (below.with_suffix(".py"), below / "__init__.py") if file.is_file()]
        if not existing:
            break
        path, parents, names = existing[0], [*parents, names[0]], names[1:]
    if not names:
        raise SignatureError(f"{target} is a module, a class or function is needed")
    return path, tuple(parents), names


@cache
def _parse(path: Path, names: tuple[str, ...]) -> griffe.Module:
    parent, depth = None, len(names) - (path.name != "__init__.py")
    for i, name in enumerate(names[:-1]):  # empty parents, by which griffe resolves relative imports
        folder = path.parents[depth - i - 1]
        parent = griffe.Module(name, filepath=folder / "__init__.py", parent=parent)
    try:
        return griffe.visit(names[-1], path, path.read_text(encoding="utf-8"), parent=parent)
    except SyntaxError as error:
        raise SignatureError(f"{path}, line {error.lineno}: {error.msg}") from error


def _definition(
    module: griffe.Module, names: list[str], passed: frozenset[str] = frozenset()
) -> griffe.Class | griffe.Function:
    """Return the definition that `names` refer to, also through re-exports of other modules.

    passed: modules whose `import *` was already followed.
    """
    member = module.members.get(names[0])
    if isinstance(member, griffe.Alias):
        definition, rest = _find_module(member.target_path)
        return _definition(definition, rest + names[1:])
    if member:
        node: Any = member
        for name in names[1:]:
            if name not in node.members:
                raise SignatureError(f"{node.name} has no {name}")
            node = node.members[name]
        if not isinstance(node, griffe.Class | griffe.Function):
            raise SignatureError(f"{node.parent.name} has no {node.name}")
        return node
    for other in module.members.values():
        if isinstance(other, griffe.Alias) and other.wildcard and module.path not in passed and names[0][0] != "_":
            with suppress(SignatureError):
                definition, rest = _find_module(f"{other.target_path}.{names[0]}")
                return _definition(definition, rest + names[1:], passed | {module.path})
    raise SignatureError(f"{module.name} has no {names[0]}")


def _signature(node: griffe.Class | griffe.Function) -> Signature:
    """Return the signature of a function, of `__init__`, of the fields of a NamedTuple or dataclass, or of the first
    base with either. A dataclass inherits the fields of its base."""
    doc = node.docstring.value if node.docstring else ""
    described, about = _described(doc), " ".join(doc.split("\n\n")[0].split())
    function = node.members.get("__init__") if isinstance(node, griffe.Class) else node
    parameters: dict[str, Parameter] = {}
    is_open = False

    def add(name: str, annotation: Any, default: Any) -> None:
        source, value = (None if part is None else str(part) for part in (annotation, default))
        parameters[name] = Parameter(source, value, described.get(name, ""), node.module)

    if isinstance(function, griffe.Function):
        is_bound = isinstance(function.parent, griffe.Class) and "staticmethod" not in function.labels
        for member in list(function.parameters)[is_bound:]:
            if member.kind == griffe.ParameterKind.var_keyword:
                is_open = True
            elif member.kind != griffe.ParameterKind.var_positional:
                add(member.name, member.annotation, member.default)
    elif isinstance(node, griffe.Class):
        attributes = [member for member in node.members.values() if isinstance(member, griffe.Attribute)]
        fields = [member for member in attributes if member.annotation and "instance-attribute" in member.labels]
        is_dataclass = any("dataclass" in str(decorator.value) for decorator in node.decorators)
        inherited = _base_signature(node) if is_dataclass or not fields else None
        if inherited and not fields:
            return inherited._replace(doc=about)
        parameters.update(inherited.parameters if inherited else {})
        for member in fields:  # without ClassVar
            add(member.name, member.annotation, member.value)
    return Signature(parameters, is_open, about)


def _base_signature(node: griffe.Class) -> Signature | None:
    for base in node.bases:
        with suppress(SignatureError):
            definition = _definition(node.module, str(base).split("."))
            if isinstance(definition, griffe.Class):
                return _signature(definition)
    return None


def _evaluate(module: griffe.Module, source: str, passed: frozenset[tuple[str, str]]) -> Any:
    """Return the type of an annotation. None if it uses more than builtins, `typing`, `settings`, package aliases."""
    namespace = {**vars(builtins), **vars(collections.abc), **vars(typing), **vars(settings)}
    namespace["Tensor"] = float  # the value of a setting is no tensor
    for name in {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)} - namespace.keys():
        namespace[name] = _alias(module, name, passed)
        if namespace[name] is None:
            return None
    try:
        return eval(source, namespace)
    except (NameError, TypeError, AttributeError, ValueError):
        return None


def _alias(module: griffe.Module, name: str, passed: frozenset[tuple[str, str]]) -> Any:
    """Return the type that a module assigns to a name, or imports from another module of its package; None if that is
    an `__init__.py`, which may be long.

    passed: modules and names that were already followed.
    """
    member = module.members.get(name)
    if (module.path, name) in passed:
        return None
    passed |= {(module.path, name)}
    if isinstance(member, griffe.Attribute) and member.value is not None:
        return _evaluate(module, str(member.value), passed)
    if isinstance(member, griffe.Alias) and member.target_path.split(".")[0] == module.path.split(".")[0]:
        with suppress(SignatureError):
            path, parents, names = _find_file(member.target_path)
            return None if path.name == "__init__.py" else _alias(_parse(path, parents), names[0], passed)
    return None


def _described(doc: str) -> dict[str, str]:
    """Return the arguments' descriptions: lines `name: text` or `name, name: text`, continued by deeper indentation."""
    described: dict[str, str] = {}
    current: list[str] = []
    for line in doc.splitlines():
        head, colon, text = line.strip().partition(": ")
        names = [name.strip() for name in head.split(",")]
        if colon and all(name.isidentifier() for name in names):
            current = names
            described |= dict.fromkeys(names, text.strip())
        elif current and line.startswith("    ") and line.strip():
            for name in current:
                described[name] += f" {line.strip()}"
        else:
            current = []
    return described
