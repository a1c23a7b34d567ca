"""Imports point one way only: from what runs, over what trains and scores, down to the records that all share."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import showattendtell

PACKAGE = Path(showattendtell.__file__).parent

COMMANDS = {"prepare", "train", "average", "evaluate", "score", "report", "caption", "demo", "__main__"}

LAYERS = [
    {"errors"},
    {"settings"},
    {"types", "runtime"},
    {"images", "text"},
    {"readers"},
    {"metrics", "models"},
    {"features", "decoding", "visualization"},
    {"datamodules", "losses", "results"},
    {"config"},
    {"loading"},
    {"inference"},
    {"training"},
    COMMANDS,
    {"extensions"},
]
"""A module imports only its own folder and the rows above it. So nothing imports an extension."""

PLAIN = {"abc", "collections", "concurrent", "dataclasses", "functools", "itertools", "math", "numba", "numpy", "os"}
PLAIN |= {"contextlib", "contextvars", "pathlib", "platform", "torch", "typing", "importlib"}
"""The libraries that attention and decoders import."""

ENCODER = {"models.encoder", "models.pretrained"}

TORCHMETRICS = {"metrics.classes"}
"""The modules of the metric classes; the functions do without torchmetrics, which takes seconds, too."""

TRAINING = {"datamodules.datamodule", "training", "train", "extensions"}
"""The modules that import Lightning, which takes seconds."""

ALL = [layer for row in LAYERS for layer in row]
MODULES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts): file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file.name != "__init__.py"
}


@cache
def imports(module: str, when_imported: bool = False) -> list[str]:
    """Dotted names that a module imports: everywhere in it, or only where it is executed when it is imported."""
    names: list[str] = []
    for node in _statements(ast.parse(MODULES[module].read_text(encoding="utf-8")), when_imported):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _statements(node: ast.AST, when_imported: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if when_imported and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if when_imported and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _statements(child, when_imported)


def own(names: Iterable[str]) -> set[str]:
    """The modules of this package among dotted names."""
    inner = [name.removeprefix("showattendtell.") for name in names if name.startswith("showattendtell.")]
    return {module for name in inner for module in (name, name.rpartition(".")[0]) if module in MODULES}


def foreign(names: Iterable[str]) -> set[str]:
    """The other packages among dotted names."""
    return {name.partition(".")[0] for name in names} - {"showattendtell"}


def layer(module: str) -> str:
    """The folder or file of the package."""
    return module.partition(".")[0]


def is_training(module: str) -> bool:
    return module in TRAINING or layer(module) in TRAINING


def row(module: str) -> int:
    return next(number for number, layers in enumerate(LAYERS) if layer(module) in layers)


def not_empty(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """The modules with what they may not import."""
    return {module: names for module, names in found.items() if names}


def test_every_module_has_its_layer_and_every_layer_its_module():
    assert {layer(module) for module in MODULES} == set(ALL)


def test_a_module_imports_only_layers_above_its_own():
    def crooked(module: str) -> set[str]:
        others = own(imports(module))
        return {other for other in others if layer(other) != layer(module) and row(other) >= row(module)}

    assert not_empty({module: crooked(module) for module in MODULES}) == {}


def test_no_module_imports_itself_through_others():
    imported = {module: own(imports(module)) for module in MODULES}
    assert set(TopologicalSorter(imported).static_order()) == set(MODULES)


def test_an_extension_imports_no_other():
    def folder(module: str) -> str:
        return ".".join(module.split(".")[:2])

    extensions = [module for module in MODULES if layer(module) == "extensions"]
    others = {
        module: {other for other in own(imports(module)) if layer(other) == "extensions"} for module in extensions
    }
    assert not_empty({m: {o for o in found if folder(o) != folder(m)} for m, found in others.items()}) == {}


def test_nothing_imports_an_entry_point():
    assert not_empty({module: own(imports(module)) & COMMANDS for module in MODULES}) == {}


def test_the_model_is_plain_torch_and_knows_nothing_of_files_or_training():
    models = [module for module in MODULES if layer(module) == "models" and module not in ENCODER]
    allowed = {"settings", "errors", "types", "images", "text", "models"}
    assert not_empty({module: set(map(layer, own(imports(module)))) - allowed for module in models}) == {}
    assert not_empty({module: foreign(imports(module)) - PLAIN for module in models}) == {}


def test_what_only_captions_and_scores_does_not_wait_for_lightning():
    others = [module for module in MODULES if not is_training(module) and layer(module) != "extensions"]
    imported = {module: imports(module, module == "runtime.process") for module in others}  # but for tasks of srun
    assert not_empty({module: foreign(names) & {"pytorch_lightning"} for module, names in imported.items()}) == {}
    trains = {module: set(filter(is_training, own(names))) for module, names in imported.items() if module != "caption"}
    assert not_empty(trains) == {}
    plain = {module: imports(module, when_imported=True) for module in others if module not in TORCHMETRICS}
    assert not_empty({module: foreign(names) & {"torchmetrics"} for module, names in plain.items()}) == {}


def test_nothing_below_the_configuration_knows_hydra():
    below = [module for module in MODULES if row(module) < LAYERS.index({"config"})]
    assert not_empty({module: foreign(imports(module)) & {"hydra", "omegaconf"} for module in below}) == {}


PUBLIC = {"_fields", "_asdict", "_replace", "_convert_", "_partial_", "_target_"}
PRIVATE = {"_data_fetcher", "_is_training_done", "_should_check_val_fx", "_should_accumulate"}
PRIVATE |= {"_step_supports_amp_scaling"}
OWN = {"self", "os"}


def test_training_uses_no_other_private_parts_of_lightning_and_torch():
    """Of `self` and of the class they are a module's own."""
    found = set()
    for module in (module for module in MODULES if layer(module) == "training"):
        nodes = ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        others = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in OWN]
        found |= {node.attr for node in others if re.match("_[^_]", node.attr)}
    assert found - PUBLIC == PRIVATE
