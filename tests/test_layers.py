"""Imports point one way only: from what runs, over what trains and scores, down to the records that all share."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import showattendtell

PACKAGE = Path(showattendtell.__file__).parent

COMMANDS = {"download", "prepare", "features.__main__", "train", "average", "calibrate", "evaluate", "score", "report"}
COMMANDS |= {"caption", "export.__main__", "demo", "reproduce", "serve", "cli"}

LAYERS = [
    {"errors", "settings"},
    {"types", "runtime"},
    {"data"},
    {"metrics", "models"},
    {"features", "decoding", "visualization"},
    {"datamodules", "losses", "export"},
    {"config"},
    {"inference"},
    {"training", "serving", "reproduction"},
    COMMANDS,
]
"""A module imports only its own folder and the rows above it."""

PLAIN = {"abc", "collections", "concurrent", "dataclasses", "functools", "itertools", "math", "numba", "numpy", "os"}
PLAIN |= {"contextlib", "contextvars", "torch", "typing"}
"""The libraries that attention and decoders import."""

ENCODER = {"models.encoder", "models.pretrained"}

TORCHMETRICS = {"metrics.modular", "metrics.means"}
"""The modules of the metric classes; the functions do without torchmetrics, which takes seconds, too."""

TRAINING = {"datamodules.datamodule", "training", "train"}
"""The modules that import Lightning, which takes seconds."""

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
        if when_imported and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
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


def is_training(module: str) -> bool:
    return module in TRAINING or layer(module) in TRAINING


def row(module: str) -> int:
    return next(number for number, layers in enumerate(LAYERS) if layer(module) in layers)


def test_every_module_has_its_layer_and_every_layer_its_module():
    assert {layer(module) for module in MODULES} == set(ALL)


def test_the_walk_sees_imports_of_every_form():
    assert {"inference.checkpoints", "config.entry_point", "visualization.tables"} <= own(imports("train"))
    assert "settings" in own(imports("config.signatures"))
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
    assert own(imports(module)) & COMMANDS == set()


@pytest.mark.parametrize(
    "module", [module for module in MODULES if layer(module) == "models" and module not in ENCODER]
)
def test_the_model_is_plain_torch_and_knows_nothing_of_files_or_training(module: str):
    assert {layer(other) for other in own(imports(module))} <= {"settings", "errors", "types", "data", "models"}
    assert foreign(imports(module)) <= PLAIN


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) == "metrics"])
def test_metrics_need_nothing_of_training_and_models(module: str):
    assert foreign(imports(module)) & {"pytorch_lightning", "timm", "hydra", "omegaconf"} == set()


@pytest.mark.parametrize("module", [module for module in MODULES if not is_training(module)])
def test_what_only_captions_and_scores_does_not_wait_for_lightning(module: str):
    assert "pytorch_lightning" not in foreign(imports(module))
    assert module in TORCHMETRICS or "torchmetrics" not in foreign(imports(module, when_imported=True))
    assert not any(map(is_training, own(imports(module))))


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) == "visualization"])
def test_reports_know_nothing_of_training(module: str):
    assert "pytorch_lightning" not in foreign(imports(module))


@pytest.mark.parametrize("module", [module for module in MODULES if row(module) < LAYERS.index({"config"})])
def test_nothing_below_the_configuration_knows_hydra(module: str):
    assert foreign(imports(module)) & {"hydra", "omegaconf"} == set()


@pytest.mark.parametrize("module", sorted(COMMANDS))
def test_importing_an_entry_point_imports_nothing_that_takes_seconds(module: str):
    reached, todo = set(), {module}
    while todo:
        current = todo.pop()
        reached.add(current)
        todo |= own(imports(current, when_imported=True)) - reached
    libraries = {library for other in reached for library in foreign(imports(other, when_imported=True))}
    slow = {"torch", "torchvision", "timm", "pytorch_lightning", "torchmetrics", "matplotlib", "wandb", "scipy"}
    assert libraries & slow == set()


def test_figures_are_drawn_without_torch():
    """The process that draws them for `caption` would start two seconds later."""
    code = "import sys, showattendtell.visualization.heatmaps; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
