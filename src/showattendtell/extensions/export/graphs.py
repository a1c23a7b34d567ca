"""What is exported: checkpoints, their descriptions, and their graphs in plain torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell import __version__
from showattendtell.config.schemas import model_groups
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.confidence import Confidence
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export.settings import ExportSettings, Precision
from showattendtell.images.reading import MAX_ASPECT_RATIO
from showattendtell.loading.hub import find_model
from showattendtell.loading.models import load_model
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import AttentionCache, DecoderState
from showattendtell.models.kernels.attention import AdditiveKeys
from showattendtell.runtime.files import WEIGHTS, sha256
from showattendtell.text.vocabulary import PAD, SPECIAL, START, UNK

SUPPRESSED_TOKENS = (PAD, START, UNK)
"""Tokens that no caption contains."""


class EncodeGraph(nn.Module):
    """Encode pixels (I, 3, S, S), uint8, to regions (I, L, D), with positions if the encoder adds them."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> Tensor:
        regions = self.encoder(self.encoder.preprocessing.normalize(pixels))
        return self.encoder.prepare_regions(regions)


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


def load_models(settings: ExportSettings) -> list[ExportModel]:
    """Load the checkpoint of the command, and those that it compares; call it within `plain_torch()`.

    Raises:
        UserError: a checkpoint cannot be exported; models are compared without a page; `names` does not fit.
    """
    groups = model_groups(settings.checkpoint, settings.compare, settings.names)
    if len(groups) > 1 and "web" not in settings.formats:
        raise UserError("compare= shows models side by side on the page of formats=[web]; add web to formats")
    models = []
    for name, [checkpoint] in groups.items():
        module, _, _, confidence = load_model(checkpoint, "cpu", BeamSearch(), settings.attention)
        path = find_model(checkpoint)
        models.append(export_model(name, module, path, settings.max_length, confidence, settings.precision))
    return models


def export_model(
    name: str,
    module: ImageCaptioner,
    path: Path,
    max_length: int,
    confidence: Confidence | None = None,
    precision: Precision = "float32",
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
