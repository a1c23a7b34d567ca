"""Export formats: writing and running graphs, and captioner.json, which describes them."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from rich.console import Console
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.graphs import Graph
from showattendtell.extensions.export.quantization import reduce_precision
from showattendtell.runtime.files import sha256
from showattendtell.runtime.tracing import lacks_onnx, open_session, quietly, reason_of, to_onnx, traced

CARD = "captioner.json"

FormatName = Literal["onnx", "torch", "aoti"]

PACKAGES = ("web", "wheel")
"""Formats that contain ONNX graphs."""

Run = Callable[..., list[ndarray]]
"""An opened graph: a function from arrays to arrays."""


class Format(NamedTuple):
    """An export format.

    Attributes:
        suffix: suffix of its files.
        runner: name of the runtime that runs them.
        lacks: returns what is missing to write the format, and how to install it; empty if nothing is.
        write: returns the content of a graph's file; torch's own writers end the process if the disk is full.
        read: opens a file.
    """

    suffix: str
    runner: str
    lacks: Callable[[], str]
    write: Callable[[ExportedProgram, Graph], bytes]
    read: Callable[[Path], Run]


def _write_onnx(program: ExportedProgram, graph: Graph) -> bytes:
    content: bytes = to_onnx(program, list(graph.inputs), graph.outputs).model_proto.SerializeToString()
    return content


def _read_onnx(path: Path) -> Run:
    session = open_session(path)
    names = [entry.name for entry in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def _write_program(program: ExportedProgram, graph: Graph) -> bytes:
    """Write without the `nn_module_stack` of loop bodies, which torch.export.save cannot serialize."""
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule) and part is not program.graph_module:
            for node in part.graph.nodes:
                node.meta.pop("nn_module_stack", None)
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def _write_package(program: ExportedProgram, graph: Graph) -> bytes:
    content = io.BytesIO()
    torch._inductor.aoti_compile_and_package(program, package_path=content)
    return content.getvalue()


def _in_arrays(run: Callable[..., object]) -> Run:
    def run_arrays(*arrays: ndarray) -> list[ndarray]:
        with torch.no_grad():
            outputs = run(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        return [part.numpy() for part in tree_leaves(outputs)]

    return run_arrays


def _lacks_compiler() -> str:
    if shutil.which(os.environ.get("CXX", "g++")):
        return ""
    return "a C++ compiler; install g++, or name yours in the environment variable CXX"


FORMATS: Mapping[FormatName, Format] = {
    "onnx": Format("onnx", "onnxruntime", lacks_onnx, _write_onnx, _read_onnx),
    "torch": Format(
        "pt2", "torch.export", str, _write_program, lambda path: _in_arrays(torch.export.load(path).module())
    ),
    "aoti": Format(
        "pt2",
        "AOTInductor",
        _lacks_compiler,
        _write_package,
        lambda path: _in_arrays(torch._inductor.aoti_load_package(str(path))),
    ),
}


def graph_formats(names: Sequence[str]) -> list[FormatName]:
    """Return the formats of graphs to write: those that were asked for, and ONNX for pages and wheels.

    Raises:
        UserError: one cannot be written here.
    """
    packages = [name for name in PACKAGES if name in names]
    for name, form in FORMATS.items():
        if name in names and (missing := form.lacks()):
            raise UserError(f"formats=[{name}] needs {missing}")
    if packages and (missing := FORMATS["onnx"].lacks()):
        raise UserError(f"formats=[{packages[0]}] needs {missing}")
    return [name for name in FORMATS if name in names or (name == "onnx" and packages)]


def trace_graphs(graphs: Mapping[str, Graph]) -> dict[str, ExportedProgram]:
    """Trace all graphs; raise `UserError` for a model that torch.export cannot trace."""
    programs = {}
    for name, (module, example, inputs, _, _) in graphs.items():
        try:
            programs[name] = traced(module, example, list(inputs.values()))
        except Exception as error:
            raise UserError(f"torch.export cannot trace the graph {name} of this model ({reason_of(error)})") from None
    return programs


def graph_file(folder: Path, name: FormatName, graph: str) -> Path:
    return folder / name / f"{graph}.{FORMATS[name].suffix}"


def read_graphs(graphs: Iterable[str], name: FormatName, folder: Path) -> dict[str, Run]:
    with quietly():
        return {graph: FORMATS[name].read(graph_file(folder, name, graph)) for graph in graphs}


def describe_graph(graph: Graph, program: ExportedProgram) -> dict[str, Any]:
    """Return names, shapes and types of inputs and outputs; a word in a shape is a dynamic dimension."""
    results = tree_leaves(program.module()(*graph.example))
    inputs = zip(graph.inputs, graph.example, graph.inputs.values(), strict=True)
    outputs = zip(graph.outputs, results, [graph.rows] * len(results), strict=True)
    return {"inputs": [_describe(*output) for output in inputs], "outputs": [_describe(*output) for output in outputs]}


def _describe(name: str, tensor: Tensor, rows: str) -> dict[str, Any]:
    return {"name": name, "shape": [rows, *tensor.shape[1:]], "type": str(tensor.dtype).removeprefix("torch.")}


def write_formats(
    folder: Path,
    graphs: Mapping[str, Graph],
    formats: Sequence[FormatName],
    metadata: Mapping[str, Any],
    pixels: Sequence[ndarray] = (),
) -> dict[str, Any]:
    """Write the graphs in each format, and for ONNX the script that runs them; return the metadata with the graphs.

    Args:
        metadata: has the precision of ONNX graphs.
        pixels: inputs of `encode` on which int8 graphs are quantized.

    Raises:
        UserError: a format does not support a graph.
    """
    with Console(stderr=True).status("tracing the model") as status:
        programs = trace_graphs(graphs)
        for name in formats:
            (folder / name).mkdir(parents=True)
            for part, graph in graphs.items():
                status.update(f"writing {part} as {name}")
                try:
                    with quietly():
                        content = FORMATS[name].write(programs[part], graph)
                        if name == "onnx":
                            content = reduce_precision(content, part, metadata["precision"], pixels)
                except OSError:
                    raise
                except Exception as error:
                    message = f"the graph {part} cannot be written as {name} ({reason_of(error)})"
                    raise UserError(f"{message}; leave {name} out of formats") from None
                graph_file(folder, name, part).write_bytes(content)
    if "onnx" in formats:
        shutil.copy(run_onnx.__file__, folder)
    described = {name: describe_graph(graphs[name], program) for name, program in programs.items()}
    return {**metadata, "graphs": described}


def remove_graphs(folder: Path, name: FormatName) -> None:
    """Remove the files of a format, whose content is in a package."""
    shutil.rmtree(folder / name)
    (folder / Path(run_onnx.__file__).name).unlink()


def write_metadata(folder: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write captioner.json with the sizes and checksums of all files in the folder; return these by file."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sizes = {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
    content = json.dumps({**card, "files": sizes}, indent=1, ensure_ascii=False)
    (folder / CARD).write_text(content + "\n", encoding="utf-8")
    return sizes
