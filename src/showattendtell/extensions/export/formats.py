"""Export formats: writing graphs, reading them again, the check of their captions against PyTorch's on the same pixels,
and captioner.json."""

import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from rich.console import Console
from torch.export import ExportedProgram

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.graphs import ExportModel, Graph
from showattendtell.extensions.export.run_onnx import Card, beam_search, sentence_of, start
from showattendtell.runtime.files import sha256
from showattendtell.runtime.tracing import lacks_onnx, quietly, reason_of, to_onnx, traced
from showattendtell.visualization.tables import numeric_table

CARD = "captioner.json"

FormatName = Literal["onnx", "torch"]

PACKAGES = ("web", "wheel")
"""Formats that contain ONNX graphs."""

LARGE_WEIGHTS = 1024
"""Weights with fewer elements stay in float32."""

BEAM = 3
"""The beam of the captions that are checked."""

DIFFERENCE = 1e-3
"""Tolerance for log p (relative), alpha and beta; also for different captions to count as equally likely."""


RUNNERS: Mapping[FormatName, str] = {"onnx": "onnxruntime", "torch": "torch.export"}
"""The runtimes of the formats of graphs."""

SUFFIXES: Mapping[FormatName, str] = {"onnx": "onnx", "torch": "pt2"}


def _content(program: ExportedProgram, graph: Graph, name: FormatName, precision: str) -> bytes:
    """Return the content of a graph's file; torch's own writers end the process if the disk is full."""
    if name == "torch":
        content = io.BytesIO()
        torch.export.save(program, content)
        return content.getvalue()
    model = to_onnx(program, list(graph.example), graph.outputs).model_proto
    if precision == "float16":
        halve_weights(model)
    return bytes(model.SerializeToString())


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


def _open(path: Path) -> Callable[..., list[ndarray]]:
    """Return the graph in a file as a function from arrays to arrays."""
    if path.suffix == ".onnx":
        return run_onnx.open_graph(path)
    module = torch.export.load(path).module()

    def run(*arrays: ndarray) -> list[ndarray]:
        with torch.no_grad():
            outputs = module(*map(torch.from_numpy, arrays))
        return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else [outputs])]

    return run


def graph_formats(names: Sequence[str]) -> list[FormatName]:
    """Return the formats of graphs to write: those that were asked for, and ONNX for pages and wheels.

    Raises:
        UserError: one cannot be written here.
    """
    needing_onnx = [name for name in ("onnx", *PACKAGES) if name in names]
    if needing_onnx and (missing := lacks_onnx()):
        raise UserError(f"formats=[{needing_onnx[0]}] needs {missing}")
    return [name for name in RUNNERS if name in names or (name == "onnx" and needing_onnx)]


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
    return folder / name / f"{graph}.{SUFFIXES[name]}"


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
                        content = _content(programs[part], graph, name, model.metadata["precision"])
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
    """A caption, or several, compared with PyTorch's: the number of equal ones, and the largest differences of log p
    (relative), and among equal captions of alpha and beta."""

    same: int
    log_prob: float
    maps: float


def check_formats(
    model: ExportModel, folder: Path, formats: Sequence[FormatName], images: Sequence[ndarray]
) -> dict[str, Agreement]:
    """Caption images (1, 3, S, S), uint8, with PyTorch and with each format, and compare the captions.

    Returns:
        The agreement of each runner.

    Raises:
        UserError: a format writes other captions than PyTorch, though its weights are those of the model.
    """
    card, module, found = model.metadata, model.module, {}
    decoding = BeamSearch(beam_size=BEAM, max_length=card["max_length"], allow_unk=False)
    pytorch = ImageCaptioner(module.encoder, module.captioner, module.vocabulary, decoding)
    with torch.no_grad():
        expected = [pytorch.generate(torch.from_numpy(pixels))[0][0] for pixels in images]
    for name in formats:
        runner, is_exact = RUNNERS[name], name != "onnx" or card["precision"] == "float32"
        with quietly():
            graphs = {graph: _open(graph_file(folder, name, graph)) for graph in model.graphs}
        agreements = []
        for i, (pixels, other) in enumerate(zip(images, expected, strict=True), start=1):
            caption = beam_search(graphs, card, start(graphs, pixels), BEAM)
            agreement = compare(caption, other)
            if is_exact and not (agreement.log_prob <= DIFFERENCE and agreement.maps <= DIFFERENCE):
                raise UserError(
                    f"{runner} says '{sentence_of(caption.tokens, card)}' (log p {caption.log_prob:.3f}) of image {i}, "
                    f"and PyTorch '{sentence_of(other.tokens, card)}' ({other.log_prob:.3f}); their attention differs "
                    f"by {agreement.maps:.1g}, and nothing is exported: leave that format out"
                )
            agreements.append(agreement)
        same, log_prob, maps = zip(*agreements, strict=True)
        found[runner] = Agreement(sum(same), max(log_prob), max(maps))
    return found


def compare(caption: Any, other: Any) -> Agreement:
    """Compare a caption with PyTorch's."""
    log_prob = abs(caption.log_prob - other.log_prob) / max(1, abs(other.log_prob))
    if caption.tokens != other.tokens:
        return Agreement(0, log_prob, 0.0)
    pairs = ((caption.attention, other.attention), (caption.gates, other.gates))
    return Agreement(1, log_prob, max(float(np.abs(own - np.asarray(its)).max()) for own, its in pairs))


def print_export(found: Mapping[str, Agreement], total: int, precision: str) -> None:
    """Print the number of captions equal to PyTorch's, and the largest differences."""
    table = numeric_table("", ("same", "log p", "attention"), title=f"{total} photographs")
    table.caption = "same: captions equal to PyTorch's; log p, attention: the largest difference"
    for runner, (same, log_prob, maps) in found.items():
        table.add_row(runner, f"{same} of {total}", f"{100 * log_prob:.4f} %", f"{maps:.0e}")
    console = Console(highlight=False)
    console.print(table)
    if any(agreement.same < total for agreement in found.values()):
        reason = (
            "are equally likely" if precision == "float32" else f"come from weights that were rounded to {precision}"
        )
        console.print(f"the captions that differ {reason}, which is fine", soft_wrap=True)
