"""Read the signature of a class or function from its source, without importing it: importing torch takes seconds, too
long for an error message about a setting."""

import ast
import builtins
import collections.abc
import importlib.util
import re
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import griffe

from showattendtell import settings

VARIADIC = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


@dataclass(frozen=True)
class Parameter:
    """An argument: its annotation and its default as source, and its description."""

    source: griffe.Expr | str | None
    default: str | None
    doc: str

    @cached_property
    def annotation(self) -> Any:
        """The type; Any if there is none, or if it is unknown without an import."""
        try:
            return Any if self.source is None else _evaluate(self.source)
        except (KeyError, griffe.GriffeError, NameError, TypeError, AttributeError, ValueError, RecursionError):
            return Any

    @property
    def value(self) -> Any:
        """The default as plain data; an expression as its source."""
        with suppress(ValueError):
            return ast.literal_eval(str(self.default))
        return self.default


class Signature(NamedTuple):
    """The arguments by name, whether any others are accepted (`**kwargs`), and the docstring's first paragraph."""

    parameters: Mapping[str, Parameter] = MappingProxyType({})
    open: bool = False
    doc: str = ""


class SignatureError(KeyError):
    """Raised if the target does not exist. A `KeyError` is what griffe expects of a name that it looks up."""

    __str__ = Exception.__str__


class Sources(griffe.ModulesCollection):
    """Modules that are parsed when a name in them is looked up: griffe's own loader would parse whole packages."""

    def get_member(self, key: Any) -> Any:
        first, *names = key.split(".")
        if first not in self.members:
            spec = None
            with suppress(ValueError):  # of an empty name, or of `__main__` in a script
                spec = importlib.util.find_spec(first)
            if spec is None or spec.origin is None:
                raise SignatureError(f"there is no package {first}")
            if not spec.origin.endswith(".py"):
                raise SignatureError(f"{first} has no Python source, and may not be called")
            self.set_member(first, griffe.Module(first, filepath=Path(spec.origin)))
        node: Any = self.members[first]
        for name in names:
            if node.is_module and name not in node.members:
                self._add_members(node, name)
            if name not in node.members:
                hint = "; name the module that defines it" if node.is_module else ""  # it may be an `import *`
                raise SignatureError(f"{node.name} has no {name}{hint}")
            member = node.members[name]
            node = member.final_target if member.is_alias else member
        return node

    def _add_members(self, module: Any, name: str) -> None:
        """Add the submodule of a name, or else the members of the module itself."""
        below = module.filepath.parent / name
        for file in (below.with_suffix(".py"), below / "__init__.py"):
            if module.is_init_module and file.is_file():
                module.set_member(name, griffe.Module(name, filepath=file))
                return
        source = module.filepath.read_text("utf-8")
        try:
            parsed = griffe.visit(module.name, module.filepath, source, parent=module.parent)
        except SyntaxError as error:
            raise SignatureError(f"{module.filepath}, line {error.lineno}: {error.msg}") from error
        for inner in parsed.members.keys() - module.members.keys():  # it has submodules that were looked up
            module.set_member(inner, parsed.members[inner])


SOURCES = Sources()


@cache
def read_signature(target: str) -> Signature:
    """Return the signature of `package.module.Class`, `package.module.function` or `package.module.Class.method`.

    Raises:
        SignatureError: if it does not exist.
    """
    try:
        node = SOURCES.get_member(target)
    except griffe.GriffeError as error:
        raise SignatureError(str(error)) from error
    if not isinstance(node, griffe.Class | griffe.Function):
        raise SignatureError(f"{target} ({node.kind.value}) is not a class or function")
    return _signature(node)


def _signature(node: Any) -> Signature:
    """Return the signature of a function, of `__init__`, of the fields of a NamedTuple or dataclass, or of the first
    base with either. A dataclass inherits the fields of its base."""
    doc = node.docstring.value if node.docstring else ""
    described: dict[str, str] = {}  # lines `name: text` or `name, name: text`, continued by deeper indentation
    for _, names, text in re.findall(r"^( *)(\w+(?:, \w+)*): (.*(?:\n\1    .*)*)", doc, re.MULTILINE):
        described |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    function = node.members.get("__init__") if node.is_class else node
    inherited, arguments = Signature(), list[griffe.Parameter]()
    if function and function.is_function:
        is_bound = function.parent.is_class and "staticmethod" not in function.labels
        arguments = list(function.parameters)[is_bound:]
    else:
        is_tuple = "NamedTuple" in [str(base).rpartition(".")[2] for base in node.bases]
        bases = [] if is_tuple else [base for base in node.resolved_bases if base.is_class]
        inherited = _signature(bases[0]) if bases else inherited
        if is_tuple or any("dataclass" in decorator.callable_path for decorator in node.decorators):
            labelled = [member for member in node.members.values() if "instance-attribute" in member.labels]
            fields = [member for member in labelled if member.annotation]  # a ClassVar has no such label
            arguments = [griffe.Parameter(x.name, annotation=x.annotation, default=x.value) for x in fields]
    parameters = dict(inherited.parameters)
    for argument in arguments:
        if argument.kind not in VARIADIC:
            default = None if argument.default is None else str(argument.default)
            parameters[argument.name] = Parameter(argument.annotation, default, described.get(argument.name, ""))
    is_open = inherited.open or VARIADIC[1] in [argument.kind for argument in arguments]
    return Signature(parameters, is_open, " ".join(doc.split("\n\n")[0].split()))


def _evaluate(annotation: griffe.Expr | str | None) -> Any:
    """Return the type of an annotation.

    Raises:
        SignatureError: it uses more than builtins, `typing`, `settings` and names that are assigned to such types.
    """
    namespace = {**vars(builtins), **vars(collections.abc), **vars(typing), **vars(settings)}
    namespace["Tensor"] = float  # the value of a setting is no tensor
    for name in annotation.iterate() if isinstance(annotation, griffe.Expr) else ():
        if isinstance(name, griffe.ExprName) and name.name not in namespace:
            assigned = SOURCES.get_member(name.canonical_path)
            if not assigned.is_attribute:
                raise SignatureError(f"{name.name} is no type of settings")
            namespace[name.name] = _evaluate(assigned.value)
    return eval(str(annotation), namespace)
