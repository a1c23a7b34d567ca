"""Export formats: writing graphs, reading them again, the check of their captions against PyTorch's on the same pixels,
and captioner.json."""

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from rich.console import Console
from torch.export import ExportedProgram

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.graphs import ExportModel, Graph
from showattendtell.extensions.export.run_onnx import Card, OnnxCaption, beam_search, sentence_of, start
from showattendtell.runtime.files import sha256
from showattendtell.runtime.tracing import lacks_onnx, quietly, reason_of, to_onnx, traced
from showattendtell.visualization.tables import numeric_table

CARD = "captioner.json"

FormatName = Literal["onnx", "torch"]

PACKAGES = ("web", "wheel")
"""Formats that contain ONNX graphs."""

Run = Callable[..., list[ndarray]]
"""An opened graph: a function from arrays to arrays."""

LARGE_WEIGHTS = 1024
"""Weights with fewer elements stay in float32."""

BEAM = 3
"""The beam of the captions that are checked."""

DIFFERENCE = 1e-3
"""Tolerance for log p (relative), alpha and beta; also for different captions to count as equally likely."""


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
    write: Callable[[ExportedProgram, Graph, str], bytes]
    read: Callable[[Path], Run]


def _write_onnx(program: ExportedProgram, graph: Graph, precision: str) -> bytes:
    model = to_onnx(program, list(graph.example), graph.outputs).model_proto
    if precision == "float16":
        halve_weights(model)
    content: bytes = model.SerializeToString()
    return content


def halve_weights(model: Any) -> None:
    """Store large weights of an ONNX model in float16. It converts them when it is loaded, and computes in float32."""
    import onnx
    from onnx import numpy_helper

    for weight in list(model.graph.initializer):
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size >= LARGE_WEIGHTS:
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
            cast = onnx.helper.make_node("Cast", [weight.name], [name], to=onnx.TensorProto.FLOAT)
            model.graph.node.insert(0, cast)


def _write_program(program: ExportedProgram, graph: Graph, precision: str) -> bytes:
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def _read_program(path: Path) -> Run:
    module = torch.export.load(path).module()

    def run(*arrays: ndarray) -> list[ndarray]:
        with torch.no_grad():
            outputs = module(*map(torch.from_numpy, arrays))
        return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else [outputs])]

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
    for name, graph in graphs.items():
        try:
            programs[name] = traced(graph.module, [*graph.example.values()], graph.axes)
        except Exception as error:
            raise UserError(f"torch.export cannot trace the graph {name} of this model ({reason_of(error)})") from None
    return programs


def graph_file(folder: Path, name: FormatName, graph: str) -> Path:
    return folder / name / f"{graph}.{FORMATS[name].suffix}"


def write_formats(folder: Path, model: ExportModel, formats: Sequence[FormatName]) -> None:
    """Write the graphs in each format, and for ONNX the script that runs them.

    Raises:
        UserError: a format does not support a graph.
    """
    with Console(stderr=True).status("tracing the model") as status:
        programs = trace_graphs(model.graphs)
        for name in formats:
            (folder / name).mkdir(parents=True)
            for part, graph in model.graphs.items():
                status.update(f"writing {part} as {name}")
                try:
                    with quietly():
                        content = FORMATS[name].write(programs[part], graph, model.metadata["precision"])
                except Exception as error:
                    raise UserError(
                        f"the graph {part} cannot be written as {name} ({reason_of(error)}); leave {name} out of "
                        "formats"
                    ) from None
                graph_file(folder, name, part).write_bytes(content)
    if "onnx" in formats:
        shutil.copy(run_onnx.__file__, folder)


def write_metadata(folder: Path, card: Card) -> None:
    """Write captioner.json with the sizes and checksums of all files in the folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sizes = {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
    content = json.dumps({**card, "files": sizes}, indent=1, ensure_ascii=False)
    (folder / CARD).write_text(content + "\n", encoding="utf-8")


class Agreement(NamedTuple):
    """Captions compared with PyTorch's: the number of equal ones, and the largest differences of log p (relative), and
    among equal captions of alpha and beta."""

    same: int
    log_prob: float
    maps: float


def by_pytorch(model: ImageCaptioner, images: Iterable[ndarray], max_length: int) -> list[OnnxCaption]:
    """Return the captions of images (1, 3, S, S) by the model itself."""
    decoding = BeamSearch(beam_size=BEAM, max_length=max_length, allow_unk=False)
    ensemble = ImageCaptionerEnsemble([ImageCaptioner(model.encoder, model.captioner, model.vocabulary, decoding)])
    captions = []
    for pixels in images:
        with torch.no_grad():
            [[best]] = ensemble.generate([torch.from_numpy(pixels)])
        captions.append(OnnxCaption(best.tokens, best.log_prob, best.attention.numpy(), best.gates.numpy()))
    return captions


def check_formats(
    model: ExportModel, folder: Path, formats: Sequence[FormatName], images: Sequence[ndarray]
) -> dict[str, Agreement]:
    """Caption images (1, 3, S, S), uint8, with PyTorch and with each format, and compare the captions.

    Returns:
        The agreement of each runner.

    Raises:
        UserError: a format writes other captions than PyTorch, though its weights are those of the model.
    """
    card, found = model.metadata, {}
    expected = by_pytorch(model.module, images, card["max_length"])
    for name in formats:
        runner, exact = FORMATS[name].runner, name != "onnx" or card["precision"] == "float32"
        with quietly():
            graphs = {graph: FORMATS[name].read(graph_file(folder, name, graph)) for graph in model.graphs}
        captions = [beam_search(graphs, card, start(graphs, card, pixels), BEAM) for pixels in images]
        found[runner] = compare(captions, expected, card, runner, exact)
    return found


def compare(
    captions: Sequence[OnnxCaption], expected: Sequence[OnnxCaption], card: Card, name: str, exact: bool = True
) -> Agreement:
    """Compare captions with those expected; if `exact`, different captions must be equally likely.

    Raises:
        UserError: they are not, or log p or attention of equal captions differ.
    """
    same, log_prob, maps = 0, 0.0, 0.0
    for i, (caption, other) in enumerate(zip(captions, expected, strict=True), start=1):
        off = abs(caption.log_prob - other.log_prob) / max(1, abs(other.log_prob))
        difference = 0.0
        if caption.tokens == other.tokens:
            same += 1
            pairs = ((caption.attention, other.attention), (caption.gates, other.gates))
            difference = max(float(np.abs(own - its).max()) for own, its in pairs)
        log_prob, maps = max(log_prob, off), max(maps, difference)
        if exact and not (off <= DIFFERENCE and difference <= DIFFERENCE):
            raise UserError(
                f"{name} says '{sentence_of(caption, card)}' (log p {caption.log_prob:.3f}) of image "
                f"{i}, and PyTorch '{sentence_of(other, card)}' ({other.log_prob:.3f}); their "
                f"attention differs by {difference:.1g}, and nothing is exported: leave that format out"
            )
    return Agreement(same, log_prob, maps)


def print_export(found: Mapping[str, Agreement], total: int) -> None:
    """Print the number of captions equal to PyTorch's, and the largest differences."""
    table = numeric_table("", ("same", "log p", "attention"), title=f"{total} photographs")
    table.caption = "same: captions equal to PyTorch's; log p, attention: the largest difference"
    for runner, (same, log_prob, maps) in found.items():
        table.add_row(runner, f"{same} of {total}", f"{100 * log_prob:.4f} %", f"{maps:.0e}")
    Console(highlight=False).print(table)
