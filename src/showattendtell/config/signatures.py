"""Read the signature of a class or function from its source, without importing it: importing torch takes seconds, too
long for an error message about a setting."""

import ast
import builtins
import collections.abc
import importlib.util
import typing
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from showattendtell import settings


class Parameter(NamedTuple):
    """An argument: its type (None if unknown without an import), its default as source, its description."""

    annotation: Any
    default: str | None
    doc: str


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

    Raises `SignatureError` if it does not exist.
    """
    path, names = _find_module(target)
    module, node = _definition(path, names)
    if isinstance(node, ast.ClassDef):
        return _class_signature(module, node)
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
    return _function_signature(module, node, ast.get_docstring(node) or "", bound=len(names) > 1 and not static)


def _find_module(target: str) -> tuple[Path, list[str]]:
    """Return the source file of the longest prefix that is a module, and the remaining names."""
    parts = target.split(".")
    try:
        spec = importlib.util.find_spec(parts[0])
    except ValueError:
        spec = None
    if spec is None or spec.origin is None:
        raise SignatureError(f"there is no package {parts[0] or target}")
    if not spec.origin.endswith(".py"):
        raise SignatureError(f"{parts[0]} has no Python source, and may not be called")
    path, names = Path(spec.origin), parts[1:]
    while names and path.name == "__init__.py":
        below = path.parent / names[0]
        candidates = [below.with_suffix(".py"), below / "__init__.py"]
        found = [candidate for candidate in candidates if candidate.is_file()]
        if not found:
            break
        path, names = found[0], names[1:]
    if not names:
        raise SignatureError(f"{target} is a module, a class or function is needed")
    return path, names


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _definition(
    path: Path, names: list[str], passed: frozenset[Path] = frozenset()
) -> tuple[Path, ast.ClassDef | ast.FunctionDef]:
    """Return the file and the definition that `names` refer to, also through re-exports of other modules.

    passed: modules whose `import *` was already followed.
    """
    for node in ast.walk(_parse(path)) if len(names) == 1 else _parse(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == names[0]:
            return path, _member(node, names[1:])
    imports = [node for node in _parse(path).body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        for alias in node.names:
            if (alias.asname or alias.name) == names[0]:
                module, rest = _find_module(f"{_absolute(path, node)}.{alias.name}")
                return _definition(module, rest + names[1:])
    for node in imports:
        if node.names[0].name == "*" and path not in passed and not names[0].startswith("_"):
            with suppress(SignatureError):
                module, rest = _find_module(f"{_absolute(path, node)}.{names[0]}")
                return _definition(module, rest + names[1:], passed | {path})
    raise SignatureError(f"{path.stem} has no {names[0]}")


def _member(node: ast.ClassDef | ast.FunctionDef, names: list[str]) -> ast.ClassDef | ast.FunctionDef:
    for name in names:
        inner = [n for n in node.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
        if not inner:
            raise SignatureError(f"{node.name} has no {name}")
        node = inner[0]
    return node


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    """Return the absolute name of an imported module."""
    if not node.level:
        return node.module or ""
    parts = _packages(path)
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def _packages(path: Path) -> list[str]:
    """Return the packages that contain a module, the outermost first."""
    package = path.parent
    parts = [package.name]
    while (package.parent / "__init__.py").is_file():
        package = package.parent
        parts.insert(0, package.name)
    return parts


def _class_signature(path: Path, node: ast.ClassDef) -> Signature:
    """Return the signature of `__init__`, of the fields of a NamedTuple or dataclass, or of the first base with either.

    A dataclass inherits the fields of its base.
    """
    doc = ast.get_docstring(node) or ""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _function_signature(path, member, doc, bound=True)
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign) and _is_field(member)]
    inherited = None if fields and not _is_dataclass(node) else _base_signature(path, node)
    if inherited and not fields:
        return inherited._replace(doc=_first_paragraph(doc))
    described = _described(doc)
    parameters = dict(inherited.parameters) if inherited else {}
    for field in fields:
        name, default = ast.unparse(field.target), ast.unparse(field.value) if field.value else None
        parameters[name] = Parameter(_evaluate(path, field.annotation), default, described.get(name, ""))
    return Signature(parameters, False, _first_paragraph(doc))


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_field(member: ast.AnnAssign) -> bool:
    return isinstance(member.target, ast.Name) and not ast.unparse(member.annotation).startswith("ClassVar")


def _base_signature(path: Path, node: ast.ClassDef) -> Signature | None:
    for base in node.bases:
        try:
            module, definition = _definition(path, ast.unparse(base).split("."))
        except SignatureError:
            continue
        if isinstance(definition, ast.ClassDef):
            return _class_signature(module, definition)
    return None


def _function_signature(path: Path, node: ast.FunctionDef, doc: str, bound: bool) -> Signature:
    described = _described(doc)
    positional = [*node.args.posonlyargs, *node.args.args][1 if bound else 0 :]
    without_default = [None] * (len(positional) - len(node.args.defaults))
    defaults: list[ast.expr | None] = [*without_default, *node.args.defaults]
    pairs = [*zip(positional, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    parameters = {
        argument.arg: Parameter(
            _evaluate(path, argument.annotation),
            ast.unparse(default) if default is not None else None,
            described.get(argument.arg, ""),
        )
        for argument, default in pairs
    }
    return Signature(parameters, node.args.kwarg is not None, _first_paragraph(doc))


def _evaluate(path: Path, annotation: ast.expr | None, passed: frozenset[tuple[Path, str]] = frozenset()) -> Any:
    """Return the type of an annotation. None if it uses more than builtins, `typing`, `settings`, package aliases."""
    if annotation is None:
        return None
    known = {**vars(builtins), **vars(collections.abc), **vars(typing), **vars(settings)}
    for name in {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)} - known.keys():
        known[name] = _alias(path, name, passed)
        if known[name] is None:
            return None
    try:
        return eval(compile(ast.Expression(annotation), str(path), "eval"), known)
    except (NameError, TypeError, AttributeError, ValueError):
        return None


def _alias(path: Path, name: str, passed: frozenset[tuple[Path, str]]) -> Any:
    """Return the type that a module assigns to a name, or imports under it from another module of its package.

    passed: modules and names that were already followed.
    """
    if (path, name) in passed:
        return None
    passed |= {(path, name)}
    for node in _parse(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return _evaluate(path, node.value, passed)
        if isinstance(node, ast.ImportFrom):
            for origin in [alias.name for alias in node.names if (alias.asname or alias.name) == name]:
                return _imported_alias(path, node, origin, passed)
    return None


def _imported_alias(path: Path, node: ast.ImportFrom, name: str, passed: frozenset[tuple[Path, str]]) -> Any:
    """Return an imported type; None if it is from another package or from an `__init__.py`, which may be long."""
    source = _absolute(path, node)
    if source.split(".")[0] != _packages(path)[0]:
        return None
    try:
        module, names = _find_module(f"{source}.{name}")
    except SignatureError:
        return None
    return _alias(module, names[0], passed) if names and module.name != "__init__.py" else None


def _first_paragraph(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


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
