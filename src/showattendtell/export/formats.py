"""File formats of exported graphs: writing and running them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch.export import ExportedProgram
from torch.fx import GraphModule

from showattendtell.errors import UserError
from showattendtell.export.graphs import Graph
from showattendtell.runtime.tracing import lacks_onnx, open_session, quietly, reason_of, to_onnx, traced

FormatName = Literal["onnx", "torch", "aoti"]

Run = Callable[..., list[ndarray]]
"""An opened graph: a function from arrays to arrays."""


class Format(NamedTuple):
    """
    suffix  of its files
    runner  the runtime that runs them
    lacks   returns what is missing to write the format, and how to install it; empty if nothing is
    write   writes a graph to a file
    read    opens a file
    """

    suffix: str
    runner: str
    lacks: Callable[[], str]
    write: Callable[[ExportedProgram, Graph, Path], object]
    read: Callable[[Path], Run]


def _write_onnx(program: ExportedProgram, graph: Graph, path: Path) -> None:
    to_onnx(program, list(graph.inputs), graph.outputs).save(path)


def _read_onnx(path: Path) -> Run:
    session = open_session(path)
    names = [entry.name for entry in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def _write_program(program: ExportedProgram, graph: Graph, path: Path) -> None:
    """Write without the `nn_module_stack` of loop bodies, which torch.export.save cannot serialise."""
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule) and part is not program.graph_module:
            for node in part.graph.nodes:
                node.meta.pop("nn_module_stack", None)
    torch.export.save(program, path)


def _read_program(path: Path) -> Run:
    return _in_arrays(torch.export.load(path).module())


def _write_package(program: ExportedProgram, graph: Graph, path: Path) -> None:
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def _read_package(path: Path) -> Run:
    return _in_arrays(torch._inductor.aoti_load_package(str(path)))


def _in_arrays(run: Callable[..., object]) -> Run:
    def run_arrays(*arrays: ndarray) -> list[ndarray]:
        with torch.no_grad():
            given = run(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        return [part.numpy() for part in torch.utils._pytree.tree_leaves(given)]

    return run_arrays


def _lacks_compiler() -> str:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return "a C++ compiler; install g++, or name yours in the environment variable CXX"
    return ""


FORMATS: Mapping[FormatName, Format] = {
    "onnx": Format("onnx", "onnxruntime", lacks_onnx, _write_onnx, _read_onnx),
    "torch": Format("pt2", "torch.export", str, _write_program, _read_program),
    "aoti": Format("pt2", "AOTInductor", _lacks_compiler, _write_package, _read_package),
}


def require(names: Sequence[FormatName]) -> None:
    """Raise `UserError` for a format that cannot be written here."""
    for name in names:
        if missing := FORMATS[name].lacks():
            raise UserError(f"formats=[{name}] needs {missing}")


def trace_graphs(graphs: Mapping[str, Graph]) -> dict[str, ExportedProgram]:
    """Trace all graphs; raise `UserError` for a model that torch.export cannot trace."""
    programs = {}
    for name, (module, example, inputs, _, _) in graphs.items():
        try:
            programs[name] = traced(module, example, list(inputs.values()))
        except Exception as fault:
            raise UserError(f"torch.export cannot follow this model's graph {name} ({reason_of(fault)})") from None
    return programs


def write_graph(program: ExportedProgram, graph: Graph, name: FormatName, path: Path) -> None:
    """Write a graph; raise `UserError` if the format does not support it."""
    try:
        with quietly():
            FORMATS[name].write(program, graph, path)
    except Exception as fault:
        raise UserError(
            f"the graph {path.stem} cannot be written as {name} ({reason_of(fault)}); leave {name} out of formats"
        ) from None


def graph_file(folder: Path, name: FormatName, graph: str) -> Path:
    return folder / name / f"{graph}.{FORMATS[name].suffix}"


def read_graphs(graphs: Iterable[str], name: FormatName, folder: Path) -> dict[str, Run]:
    with quietly():
        return {graph: FORMATS[name].read(graph_file(folder, name, graph)) for graph in graphs}
