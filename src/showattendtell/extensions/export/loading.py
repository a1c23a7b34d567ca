"""What is exported: checkpoints with their graphs, and the photographs that they are checked and quantized on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from numpy import ndarray
from pydantic import Field

from showattendtell import __version__
from showattendtell.config.instantiate import Config
from showattendtell.config.schemas import Split
from showattendtell.data.images import MAX_ASPECT_RATIO, open_image
from showattendtell.data.vocabulary import SPECIAL
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import Calibration, ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.export.formats import Precision
from showattendtell.extensions.export.graphs import SUPPRESSED_TOKENS, Graph, Pixels, graphs_of
from showattendtell.inference.captioning import model_groups
from showattendtell.inference.evaluator import open_dataset
from showattendtell.inference.loading import find_model, load_model
from showattendtell.inference.predictions import evenly_spaced
from showattendtell.runtime.files import WEIGHTS, sha256
from showattendtell.settings import PositiveInt, Text, Texts
from showattendtell.types import Dataset

QUANTIZATION_IMAGES = 100
"""Number of validation images on which activations are quantized."""


@dataclass
class ExportConfig:
    """Settings of `export`.

    Attributes:
        checkpoint: a best.ckpt or last.ckpt of training, a folder written by save_pretrained, a bundled model, or one
            on the hub, as owner/name.
        compare: checkpoints that formats=[web] shows side by side with this one.
        names: of the models on that page; by default the ends of their paths.
        formats: output formats: onnx, for onnxruntime and other ONNX runtimes; torch, programs of torch.export; web, a
            page that captions photographs in the browser, for any server of static files; and wheel, a package for pip
            that needs numpy, Pillow and onnxruntime only.
        package: name of that package and of its command.
        precision: type of the weights of ONNX graphs. float16 halves the files. int8 quarters them, and the activations
            of the encoder are quantized in the ranges that they have on photographs: those of images=, or 100 of the
            validation split of dataset.root=.
        split: a split of the checkpoint's data set on which the ONNX graphs are scored, next to the model itself.
        images: photographs to check the graphs on: a file, a folder, or a list of both; generated pixels by default.
        output: a new folder; export, or export-2, ... next to the checkpoint by default.
        onnxruntime_web: archive of the npm package onnxruntime-web; by default npm fetches it, and the cache keeps it.
        webgpu: let the page of formats=[web] run the encoder with WebGPU in browsers that have it.
        pixels: input type of the graphs: uint8, 0 to 255, or float32, 0 to 1. The graphs normalize either.
        max_length: the longest caption in words, <eos> included.
    """

    checkpoint: Text
    compare: Text | Sequence[Text]
    names: Annotated[Sequence[Text], Field(min_length=1)] | None
    formats: Annotated[Sequence[Literal["onnx", "torch", "web", "wheel"]], Field(min_length=1)]
    package: Text | None
    precision: Precision
    split: Split | None
    images: Texts | None
    output: Text | None
    onnxruntime_web: Text | None
    webgpu: bool
    pixels: Pixels
    max_length: PositiveInt


class ExportModel(NamedTuple):
    """A trained model, the configuration of its training, its graphs in plain torch and its captioner.json."""

    name: str
    module: ImageCaptioner
    config: Config
    graphs: dict[str, Graph]
    metadata: dict[str, Any]

    def preprocess(self, path: str) -> ndarray:
        """Return the pixels (1, 3, S, S) of an image file, uint8, as the graph `encode` takes them."""
        return self.module.encoder.preprocessing(open_image(path)).unsqueeze(0).numpy()


def load_models(config: Config) -> list[ExportModel]:
    """Load the checkpoint of the command, and those that it compares; call it within `plain_torch()`.

    Raises:
        UserError: a checkpoint cannot be exported; models are compared without a page; `names` does not fit.
    """
    groups = model_groups(config)
    if len(groups) > 1 and "web" not in config.formats:
        raise UserError("compare= shows models side by side on the page of formats=[web]; add web to formats")
    models = []
    for name, [checkpoint] in groups.items():
        module, trained, _, calibration, _ = load_model(checkpoint, "cpu", BeamSearch(), config.attention)
        module.encoder.check_reads_pixels()
        graphs = graphs_of(module, config.pixels, config.max_length, calibration)
        if config.precision != "float32":
            del graphs["greedy"]  # its loop is a graph of its own, which is not quantized
        path = find_model(checkpoint)
        weights = path / WEIGHTS if path.is_dir() else path
        card = metadata_of(module, weights, config.pixels, config.max_length, calibration, config.precision)
        models.append(ExportModel(name, module, trained, graphs, card))
    return models


def metadata_of(
    model: ImageCaptioner,
    weights: Path,
    pixels: Pixels,
    max_length: int,
    calibration: Calibration | None = None,
    precision: Precision = "float32",
) -> dict[str, Any]:
    """Return the description of the model as plain data; graphs and files are added when they are written."""
    card: dict[str, Any] = {
        "format": 1,
        "version": __version__,
        "checkpoint": {"name": weights.name, "sha256": sha256(weights)},
        "vocabulary": model.vocabulary.words,
        "detokenizer": model.vocabulary.tokenizer.joining(),
        "languages": {language: model.vocabulary.language_token(language) for language in model.vocabulary.languages},
        "special": {word.strip("<>"): token for token, word in enumerate(SPECIAL)},
        "suppressed_tokens": SUPPRESSED_TOKENS,
        "precision": precision,
        "max_length": max_length,
        "grid": model.encoder.grid,
        "preprocessing": {
            **model.encoder.preprocessing._asdict(),
            "longest": MAX_ASPECT_RATIO,
            "pixels": pixels,
        },
    }
    if calibration is not None:  # with which `run_onnx` uses the graph `unlikeness`
        scaling = calibration.scaling.tolist()
        card["calibration"] = {"scaling": scaling, "threshold": calibration.threshold.item()}
    return card


def read_dataset(config: Config, model: ExportModel) -> Dataset | None:
    """Read the data set that a model was trained on, from the place that the command gives; None if it needs none."""
    if not config.split and config.dataset.root is None:
        return None
    return open_dataset(model.config, config)[1]


def quantization_images(dataset: Dataset | None) -> list[str]:
    """Return validation images on which activations are quantized; raise `UserError` without a data set."""
    if dataset is None:
        raise UserError("precision=int8 needs photographs; give them as images=, or the data set as dataset.root=")
    return [example.path for example in evenly_spaced(dataset.split("val"), QUANTIZATION_IMAGES)]
