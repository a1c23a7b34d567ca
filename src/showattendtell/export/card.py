"""captioner.json: what the graphs of an export mean."""

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from showattendtell import __version__
from showattendtell.captioning import ImageCaptioner
from showattendtell.data.images import LONGEST
from showattendtell.export.graphs import NEVER, Graph, Pixels
from showattendtell.files import sha256
from showattendtell.text.vocabulary import SPECIAL

CARD = "captioner.json"


def card_of(model: ImageCaptioner, weights: Path, pixels: Pixels, max_length: int) -> dict[str, Any]:
    """What the graphs mean, as plain data; their names and files are added when they are written."""
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
    """Names, shapes and types of what goes in and comes out; a word in a shape stands for any number."""
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
    """Bytes and SHA-256 of every file in the folder, by its path there."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
