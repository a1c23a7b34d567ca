"""ONNX graphs of a model: writing them, and the check of their caption against PyTorch's."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.extensions.export.graphs import ExportModel
from showattendtell.images.reading import open_image
from showattendtell.runtime.tracing import reason_of, to_onnx
from showattendtell.visualization.rendering import EXAMPLES

CARD = "captioner.json"

LARGE_WEIGHTS = 1024
"""Weights with fewer elements stay in float32."""

BEAM = 3
"""The beam size of the caption that is checked."""

DIFFERENCE = 1e-3
"""Tolerance for log p (relative), alpha, beta and the confidence."""


def write_graphs(folder: Path, model: ExportModel) -> None:
    """Write the graphs in `folder/onnx`, captioner.json, and the script that runs them.

    Raises:
        UserError: a graph cannot be traced, or ONNX has no operator for it.
    """
    (folder / "onnx").mkdir(parents=True)
    with Console(stderr=True).status("tracing the model") as status:
        for name, graph in model.graphs.items():
            status.update(f"writing {name}.onnx")
            try:
                onnx = to_onnx(graph.module, graph.example, graph.axes, graph.outputs)
            except Exception as error:
                raise UserError(f"the graph {name} of this model has no form in ONNX ({reason_of(error)})") from None
            if model.card["precision"] == "float16":
                halve_weights(onnx)
            # ONNX's own writer ends the process if the disk is full
            (folder / "onnx" / f"{name}.onnx").write_bytes(onnx.SerializeToString())
    card = json.dumps(model.card, indent=1, ensure_ascii=False)
    (folder / CARD).write_text(f"{card}\n", encoding="utf-8")
    shutil.copy(run_onnx.__file__, folder)


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


def check_graphs(folder: Path, model: ExportModel) -> str:
    """Compare the caption of a photograph by the graphs in a folder with PyTorch's, and return a sentence with both.

    Raises:
        UserError: they differ, though the weights are those of the model.
    """
    pixels = model.module.encoder.preprocessing(open_image(min(EXAMPLES.iterdir()))).unsqueeze(0)
    caption, expected, difference = compare(folder, model, pixels)
    other = "as PyTorch" if caption == expected else f"and PyTorch '{expected}'"
    agreement = f"onnxruntime says '{caption}', {other}; scores and maps differ by {difference:.0e}"
    if model.card["precision"] == "float32" and not difference <= DIFFERENCE:  # also if it is NaN
        raise UserError(f"nothing is exported, for the captions of {model.name} differ: {agreement}")
    return agreement


def compare(folder: Path, model: ExportModel, pixels: Tensor) -> tuple[str, str, float]:
    """Return the captions of a photograph (1, 3, S, S), uint8, by onnxruntime and by PyTorch, and their largest
    difference: of log p (relative) and the confidence, and if the captions are the same of alpha and beta."""
    card, module = model.card, model.module
    decoding = BeamSearch(beam_size=BEAM, max_length=card["max_length"], allow_unk=False)
    captioner = ImageCaptioner(module.encoder, module.captioner, module.vocabulary, decoding)
    with torch.no_grad():
        [[expected]] = ImageCaptionerEnsemble([captioner], model.confidence).generate([pixels])
    graphs = {name: run_onnx.open_graph(folder / "onnx" / f"{name}.onnx") for name in model.graphs}
    started = run_onnx.start(graphs, pixels.numpy())
    caption = run_onnx.beam_search(graphs, card, started, BEAM)
    confidence, not_sure = run_onnx.assess(graphs, card, started, caption)
    differences = [
        (caption.log_prob - expected.log_prob) / max(1, abs(expected.log_prob)),
        confidence - expected.confidence,
        float(not_sure) - expected.not_sure,
    ]
    if caption.tokens == expected.tokens:
        differences += (caption.attention - expected.attention.numpy()).ravel().tolist()
        differences += (caption.gates - expected.gates.numpy()).tolist()
    text, other = (run_onnx.sentence_of(tokens, card) for tokens in (caption.tokens, expected.tokens))
    return text, other, float(np.abs(differences).max())
