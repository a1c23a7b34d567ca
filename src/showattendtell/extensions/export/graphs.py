"""ONNX graphs of a model and their description: writing them, and the check of their caption against PyTorch's."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from showattendtell import __version__
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.confidence import Confidence
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.extensions.export import run_onnx
from showattendtell.images.reading import MAX_ASPECT_RATIO, open_image
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import AttentionCache, DecoderState
from showattendtell.models.kernels.attention import AdditiveKeys
from showattendtell.runtime.files import WEIGHTS, sha256
from showattendtell.runtime.tracing import reason_of, to_onnx
from showattendtell.text.vocabulary import PAD, SPECIAL, START, UNK
from showattendtell.visualization.rendering import EXAMPLES

CARD = "captioner.json"

LARGE_WEIGHTS = 1024
"""Weights with fewer elements stay in float32."""

BEAM = 3
"""The beam size of the caption that is checked."""

DIFFERENCE = 1e-3
"""Tolerance for log p (relative), alpha, beta and the confidence."""

SUPPRESSED_TOKENS = (PAD, START, UNK)
"""Tokens that no caption contains."""


class EncodeGraph(nn.Module):
    """Encode pixels (I, 3, S, S), uint8, to regions (I, L, D), with positions if the encoder adds them."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> Tensor:
        return self.encoder.prepare_regions(self.encoder(pixels))


class InitGraph(nn.Module):
    """Initial state: from regions (I, L, D) to attention keys (I, ...), h_0 and c_0 (I, n).

    A decoder may keep other tensors in place of h and c, with room for `max_length` words.
    """

    def __init__(self, captioner: Captioner, max_length: int):
        super().__init__()
        self.captioner, self.max_length = captioner, max_length

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache, state = self.captioner.init_state(regions)
        state = self.captioner.decoder.export_state(state, self.max_length)
        keys = cache.keys.values if isinstance(cache.keys, AdditiveKeys) else cache.keys
        return keys, state.hidden, state.cell


class StepGraph(nn.Module):
    """One decoding step.

    Args:
        example: an attention cache of the captioner; gives the type of the keys and whether the expectation is used.
    """

    def __init__(self, captioner: Captioner, example: AttentionCache):
        super().__init__()
        self.captioner = captioner
        self._additive, self._expected = isinstance(example.keys, AdditiveKeys), example.use_expectation is not None

    def forward(
        self, regions: Tensor, keys: Tensor, image_index: Tensor, hidden: Tensor, cell: Tensor, words: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the fields of `ExportedStep` as a tuple.

        Args:
            regions, keys: of the images (I, ...).
            image_index: (B,) the image of each caption.
            hidden, cell, words: of the captions, (B, n) and their last words (B,).
        """
        attention, decoder = self.captioner.attention, self.captioner.decoder
        regions, keys = regions[image_index], keys[image_index]
        expected = torch.ones_like(words, dtype=torch.bool) if self._expected else None
        cache = AttentionCache(regions, AdditiveKeys(keys) if self._additive else keys, expected)
        return tuple(decoder.export_step(attention, cache, DecoderState(hidden, cell), words))


class Graph(NamedTuple):
    """A module to be exported.

    Attributes:
        example: the example inputs by name.
        outputs: names of the outputs.
        axes: names of the first dimensions of the inputs; that of the outputs is the last of these.
    """

    module: Any
    example: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    axes: tuple[str, ...] = ("images",)


@torch.no_grad()
def graphs_of(model: ImageCaptioner, max_length: int, confidence: Confidence | None = None) -> dict[str, Graph]:
    """Return the graphs of a model in plain torch; call and export them within `plain_torch()`.

    A calibrated model has one more, `unlikeness`, from regions (I, L, D) to (I,).

    Raises:
        UserError: the attention samples, or its keys are not tensors.
    """
    attention = model.captioner.attention
    attention.check_export()
    side = model.encoder.preprocessing.crop
    pixels = torch.zeros(2, 3, side, side, dtype=torch.uint8)
    encode, begin = EncodeGraph(model.encoder), InitGraph(model.captioner, max_length)
    regions = encode(pixels)
    cache, _ = model.captioner.init_state(regions)
    if not isinstance(cache.keys, AdditiveKeys | Tensor):
        raise UserError(f"{type(attention).__name__} keeps keys that are not tensors; only tensors can be exported")
    keys, hidden, cell = begin(regions)
    image_index = torch.tensor([0, 0, 1])
    step = {
        "regions": regions,
        "keys": keys,
        "image_index": image_index,
        "hidden": hidden[image_index],
        "cell": cell[image_index],
        "words": torch.full_like(image_index, START),
    }
    step_outputs = ("log_probs", "attention", "gates", "next_hidden", "next_cell")
    step_axes = ("images", "images", *["captions"] * 4)
    graphs = {
        "encode": Graph(encode, {"pixels": pixels}, ("regions",)),
        "begin": Graph(begin, {"regions": regions}, ("keys", "hidden", "cell")),
        "step": Graph(StepGraph(model.captioner, cache), step, step_outputs, step_axes),
    }
    if confidence is not None:
        graphs["unlikeness"] = Graph(confidence, {"regions": regions}, ("unlikeness",))
    return graphs


class ExportModel(NamedTuple):
    """A trained model, its confidence, its graphs and the content of its captioner.json."""

    name: str
    module: ImageCaptioner
    confidence: Confidence | None
    graphs: dict[str, Graph]
    card: dict[str, Any]


def export_model(
    name: str,
    module: ImageCaptioner,
    path: Path,
    max_length: int,
    confidence: Confidence | None = None,
    precision: str = "float32",
) -> ExportModel:
    """Return a model with its graphs and the content of its captioner.json.

    Args:
        path: its checkpoint or model folder.
        precision: of the large weights.
    """
    graphs, vocabulary = graphs_of(module, max_length, confidence), module.vocabulary
    weights = path / WEIGHTS if path.is_dir() else path
    card: dict[str, Any] = {
        "format": 1,
        "version": __version__,
        "checkpoint": {"name": weights.name, "sha256": sha256(weights)},
        "graphs": [*graphs],
        "vocabulary": vocabulary.words,
        "detokenizer": vocabulary.tokenizer.joining(),
        "special": {word.strip("<>"): token for token, word in enumerate(SPECIAL)},
        "suppressed_tokens": SUPPRESSED_TOKENS,
        "precision": precision,
        "max_length": max_length,
        "grid": module.encoder.grid,
        "preprocessing": {**module.encoder.preprocessing._asdict(), "longest": MAX_ASPECT_RATIO},
    }
    if confidence is not None:  # with which `run_onnx` uses the graph `unlikeness`
        curve = confidence.curve.tolist()
        card["calibration"] = {"curve": curve, "threshold": confidence.threshold.item()}
    return ExportModel(name, module, confidence, graphs, card)


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
