"""Export formats: writing and running graphs, and captioner.json, which describes them."""

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
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
from showattendtell.runtime.files import sha256
from showattendtell.runtime.tracing import lacks_onnx, quietly, reason_of, to_onnx, traced

CARD = "captioner.json"

FormatName = Literal["onnx", "torch"]

PACKAGES = ("web", "wheel")
"""Formats that contain ONNX graphs."""

Run = Callable[..., list[ndarray]]
"""An opened graph: a function from arrays to arrays."""


Precision = Literal["float32", "float16", "int8"]

SMALLEST = 1024
"""Weights with fewer elements stay in float32."""

CONVOLUTIONAL = ("Conv", "Add", "Clip", "Relu")
"""Operators of an encoder whose inputs and outputs are quantized as well."""


class Format(NamedTuple):
    """An export format.

    Attributes:
        suffix: suffix of its files.
        runner: name of the runtime that runs them.
        write: returns the content of a graph's file; torch's own writers end the process if the disk is full.
        read: opens a file.
    """

    suffix: str
    runner: str
    write: Callable[[ExportedProgram, Graph], bytes]
    read: Callable[[Path], Run]


def _write_onnx(program: ExportedProgram, graph: Graph) -> bytes:
    content: bytes = to_onnx(program, list(graph.inputs), graph.outputs).model_proto.SerializeToString()
    return content


def _write_program(program: ExportedProgram, graph: Graph) -> bytes:
    """Write without the `nn_module_stack` of loop bodies, which torch.export.save cannot serialize."""
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule) and part is not program.graph_module:
            for node in part.graph.nodes:
                node.meta.pop("nn_module_stack", None)
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def _read_program(path: Path) -> Run:
    module = torch.export.load(path).module()

    def run(*arrays: ndarray) -> list[ndarray]:
        with torch.no_grad():
            outputs = module(*map(torch.from_numpy, arrays))
        return [part.numpy() for part in tree_leaves(outputs)]

    return run


FORMATS: Mapping[FormatName, Format] = {
    "onnx": Format("onnx", "onnxruntime", _write_onnx, run_onnx.open_graph),
    "torch": Format("pt2", "torch.export", _write_program, _read_program),
}


def graph_formats(names: Sequence[str]) -> list[FormatName]:
    """Return the formats of graphs to write: those that were asked for, and ONNX for pages and wheels.

    Raises:
        UserError: one cannot be written here.
    """
    needing_onnx = [name for name in ("onnx", *PACKAGES) if name in names]
    if needing_onnx and (missing := lacks_onnx()):
        raise UserError(f"formats=[{needing_onnx[0]}] needs {missing}")
    return [name for name in FORMATS if name in names or (name == "onnx" and needing_onnx)]


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

    def describe(axes: Mapping[str, str], tensors: Iterable[Tensor]) -> list[dict[str, Any]]:
        return [
            {"name": name, "shape": [rows, *tensor.shape[1:]], "type": str(tensor.dtype).removeprefix("torch.")}
            for (name, rows), tensor in zip(axes.items(), tensors, strict=True)
        ]

    results = tree_leaves(program.module()(*graph.example))
    return {
        "inputs": describe(graph.inputs, graph.example),
        "outputs": describe(dict.fromkeys(graph.outputs, graph.rows), results),
    }


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
                    raise UserError(
                        f"the graph {part} cannot be written as {name} ({reason_of(error)}); leave {name} out of "
                        "formats"
                    ) from None
                graph_file(folder, name, part).write_bytes(content)
    if "onnx" in formats:
        shutil.copy(run_onnx.__file__, folder)
    described = {name: describe_graph(graphs[name], program) for name, program in programs.items()}
    return {**metadata, "graphs": described}


def write_metadata(folder: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write captioner.json with the sizes and checksums of all files in the folder; return these by file."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sizes = {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
    content = json.dumps({**card, "files": sizes}, indent=1, ensure_ascii=False)
    (folder / CARD).write_text(content + "\n", encoding="utf-8")
    return sizes


def reduce_precision(content: bytes, graph: str, precision: Precision, pixels: Sequence[ndarray]) -> bytes:
    """Return an ONNX graph with weights in `precision`.

    Args:
        graph: its name. With int8, the activations of `encode` are quantized too, in the ranges that they have on
            `pixels` (static quantization); the other graphs quantize theirs at each call (dynamic quantization).
        pixels: inputs of `encode`, each (1, 3, S, S).
    """
    if precision == "float16":
        return _halve(content)
    if precision == "int8":
        with TemporaryDirectory() as folder, quietly():
            return _quantize(content, graph, pixels, Path(folder))
    return content


def _halve(content: bytes) -> bytes:
    """Store large weights in float16. The graph converts them when it is loaded, and computes in float32."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(content)
    for weight in list(model.graph.initializer):
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size >= SMALLEST:
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
            cast = onnx.helper.make_node("Cast", [weight.name], [name], to=onnx.TensorProto.FLOAT)
            model.graph.node.insert(0, cast)
    return bytes(model.SerializeToString())


def _quantize(content: bytes, graph: str, pixels: Sequence[ndarray], folder: Path) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    before, prepared, after = (folder / f"{name}.onnx" for name in ("before", "prepared", "after"))
    before.write_bytes(content)
    quant_pre_process(before, prepared, skip_symbolic_shape=True)
    if graph == "encode":
        # a channel's weights have a scale of their own; inputs are unsigned, as fast kernels need them
        quantize_static(
            prepared,
            after,
            SimpleNamespace(get_next=partial(next, ({"pixels": image} for image in pixels), None)),
            op_types_to_quantize=list(CONVOLUTIONAL),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    else:
        # weights have 7 bits: with 8, processors without VNNI add two products in 16 bits, which overflow
        quantize_dynamic(prepared, after, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    return after.read_bytes()
