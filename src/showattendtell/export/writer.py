"""Writing of an export: the graphs and captioner.json, which describes them."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from showattendtell import __version__
from showattendtell.data.images import LONGEST
from showattendtell.data.vocabulary import SPECIAL
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.export import run_onnx
from showattendtell.export.formats import FormatName, graph_file, trace_graphs, write_graph
from showattendtell.export.graphs import NEVER, Graph, Pixels
from showattendtell.runtime.files import UNFINISHED, sha256

CARD = "captioner.json"


def metadata_of(model: ImageCaptioner, weights: Path, pixels: Pixels, max_length: int) -> dict[str, Any]:
    """Return the description of the model as plain data; graphs and files are added when they are written."""
    seen = model.encoder.preprocessing
    return {
        "format": 1,
        "version": __version__,
        "checkpoint": {"name": weights.name, "sha256": sha256(weights)},
        "vocabulary": list(model.vocabulary.words),
        "special": {word.strip("<>"): token for token, word in enumerate(SPECIAL)},
        "never_said": list(NEVER),
        "max_length": max_length,
        "grid": list(model.encoder.grid),
        "preprocessing": {
            **seen._asdict(),
            "mean": list(seen.mean),
            "std": list(seen.std),
            "longest": LONGEST,
            "pixels": pixels,
        },
    }


def describe_graph(graph: Graph, program: ExportedProgram) -> dict[str, Any]:
    """Return names, shapes and types of inputs and outputs; a word in a shape is a dynamic dimension."""
    given = tree_leaves(program.module()(*graph.example))
    inputs = zip(graph.inputs, graph.example, graph.inputs.values(), strict=True)
    outputs = zip(graph.outputs, given, strict=True)
    return {
        "inputs": [_describe(*each) for each in inputs],
        "outputs": [_describe(name, tensor, graph.rows) for name, tensor in outputs],
    }


def _describe(name: str, tensor: Tensor, rows: str) -> dict[str, Any]:
    return {"name": name, "shape": [rows, *tensor.shape[1:]], "type": str(tensor.dtype).removeprefix("torch.")}


def describe_files(folder: Path) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of every file in the folder, by relative path."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` on success and removed on failure.

    Raises `UserError` if `path` is a folder that is not empty, or a file.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"output={path} is there already; remove it, or give another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_formats(
    folder: Path, graphs: Mapping[str, Graph], formats: Sequence[FormatName], card: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the graphs in each format, and for ONNX the script that runs them; return the completed card."""
    with Console(stderr=True).status("following the model") as status:
        programs = trace_graphs(graphs)
        for name in formats:
            (folder / name).mkdir()
            for part, graph in graphs.items():
                status.update(f"writing {part} as {name}")
                write_graph(programs[part], graph, name, graph_file(folder, name, part))
    if "onnx" in formats:
        shutil.copy(run_onnx.__file__, folder)
    described = {name: describe_graph(graphs[name], program) for name, program in programs.items()}
    return {**card, "graphs": described, "files": describe_files(folder)}


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
