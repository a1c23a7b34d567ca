"""Imports point one way only: from what runs, over what trains and scores, down to the records that all share."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import showattendtell

PACKAGE = Path(showattendtell.__file__).parent

LAYERS = [
    {"errors", "arguments", "files", "random_states", "same_training"},
    {"records", "processes"},
    {"text"},
    {"data", "downloads", "tracing", "pretrained"},
    {"encoder"},
    {"features", "portable"},
    {"bucketing", "splits"},
    {"batches"},
    {"model"},
    {"cross_entropy", "decode", "watch"},
    {"scheduled"},
    {"loss"},
    {"metrics"},
    {"optimize", "captioning", "self_critical"},
    {"module"},
    {"corpus", "evaluation", "likeness"},
    {"report"},
    {"export"},
    {"config"},
    {"boards"},
    {"loggers", "stopping", "checkpoint"},
    {"progress", "keeping", "dashboards"},
    {"trials"},
    {"resuming", "training", "origin"},
    {"launching", "stages"},
    {"scoring", "describing", "averaging"},
    {"accounts", "serving"},
    {"reproduction"},
    {"download", "prepare", "features.__main__", "train", "average", "evaluate", "attend", "score"}
    | {"table", "caption", "page", "export.__main__", "demo", "sweep_report", "reproduce", "serve", "cli"},
]
"""What stands further down may import what stands above it; modules of one row do not import each other."""

PLAIN = {"abc", "collections", "concurrent", "dataclasses", "functools", "itertools", "math", "numba", "numpy", "os"}
PLAIN |= {"contextlib", "contextvars", "torch", "typing"}
"""What the model may import."""

TRAINING = {"batches", "module", "boards", "loggers", "dashboards", "progress", "stopping", "keeping", "trials"}
TRAINING |= {"resuming", "training", "launching", "origin", "stages"}
TRAINING |= {"train"}
"""What knows Lightning, which takes seconds to import."""

ENTRY_POINTS = LAYERS[-1]
ALL = [layer for row in LAYERS for layer in row]
MODULES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts): file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file.name != "__init__.py"
}


def imports(module: str, when_imported: bool = False) -> Iterator[str]:
    """Dotted names that a module imports: everywhere in it, or only where it is executed when it is imported."""
    for node in _statements(ast.parse(MODULES[module].read_text(encoding="utf-8")), when_imported):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _statements(node: ast.AST, when_imported: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if when_imported and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from _statements(child, when_imported)


def own(names: Iterator[str]) -> set[str]:
    """The modules of this package among dotted names."""
    inner = [name.removeprefix("showattendtell.") for name in names if name.startswith("showattendtell.")]
    return {module for name in inner for module in (name, name.rpartition(".")[0]) if module in MODULES}


def foreign(names: Iterator[str]) -> set[str]:
    """The other packages among dotted names."""
    return {name.partition(".")[0] for name in names} - {"showattendtell"}


def layer(module: str) -> str:
    """The folder or file of the package; a folder that can be run has that above all."""
    return module if module.endswith(".__main__") else module.partition(".")[0]


def row(module: str) -> int:
    return next(number for number, layers in enumerate(LAYERS) if layer(module) in layers)


def test_every_module_has_its_layer_and_every_layer_its_module():
    assert {layer(module) for module in MODULES} == set(ALL)


def test_the_walk_sees_imports_of_every_form():
    assert {"checkpoint", "config.entry", "report.tables"} <= own(imports("train"))
    assert "arguments" in own(imports("config.signature"))
    assert "pytorch_lightning" in foreign(imports("train"))
    assert "pytorch_lightning" not in foreign(imports("train", when_imported=True))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_layers_above_its_own(module: str):
    crooked = [other for other in own(imports(module)) if layer(other) != layer(module) and row(other) >= row(module)]
    assert crooked == []


def test_no_module_imports_itself_through_others():
    imported = {module: own(imports(module)) for module in MODULES}
    assert set(TopologicalSorter(imported).static_order()) == set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_an_entry_point(module: str):
    assert own(imports(module)) & ENTRY_POINTS == set()


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) == "model"])
def test_the_model_is_plain_torch_and_knows_nothing_of_files_or_training(module: str):
    assert {layer(other) for other in own(imports(module))} <= {"arguments", "errors", "records", "text", "model"}
    assert foreign(imports(module)) <= PLAIN


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) == "metrics"])
def test_metrics_see_only_words_and_numbers(module: str):
    assert foreign(imports(module)) & {"torch", "pytorch_lightning"} == set()


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) not in TRAINING])
def test_what_only_captions_and_scores_does_not_wait_for_lightning(module: str):
    assert "pytorch_lightning" not in foreign(imports(module))
    assert "torchmetrics" not in foreign(imports(module, when_imported=True))
    assert {layer(other) for other in own(imports(module))} & TRAINING == set()


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) == "report"])
def test_reports_know_nothing_of_training(module: str):
    assert "pytorch_lightning" not in foreign(imports(module))


@pytest.mark.parametrize("module", [module for module in MODULES if row(module) < LAYERS.index({"config"})])
def test_nothing_below_the_configuration_knows_hydra(module: str):
    assert foreign(imports(module)) & {"hydra", "omegaconf"} == set()


@pytest.mark.parametrize("module", sorted(ENTRY_POINTS))
def test_importing_an_entry_point_imports_nothing_that_takes_seconds(module: str):
    reached, todo = set(), {module}
    while todo:
        current = todo.pop()
        reached.add(current)
        todo |= own(imports(current, when_imported=True)) - reached
    libraries = {library for other in reached for library in foreign(imports(other, when_imported=True))}
    assert libraries & {"torch", "torchvision", "timm", "pytorch_lightning", "matplotlib", "wandb", "scipy"} == set()
