"""What exported graphs say, beside what PyTorch says of the same pixels."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray

from showattendtell.captioning import Choir, ImageCaptioner
from showattendtell.decode.search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.export.formats import FORMATS, FormatName, read_graphs
from showattendtell.export.run_onnx import Caption, Card, Graphs, spoken, write, write_greedy

DIFFERENCE = 1e-3
"""Up to which log p, in shares of itself, and alpha and beta are the same; and two captions equally likely."""

TOGETHER = 4
"""Pictures that are captioned at once, too."""

Way = Callable[[ndarray], Caption]
"""From the pixels of an image (1, 3, S, S) to its caption."""


class Said(NamedTuple):
    """What was said of each image, and the milliseconds that the median one took."""

    captions: list[Caption]
    milliseconds: float


class Outcome(NamedTuple):
    """Captions beside PyTorch's: how many are the same, and the largest differences of log p (in shares of itself) and
    of alpha and beta among these."""

    same: int
    log_probability: float
    maps: float


class Row(NamedTuple):
    """A way of captioning, and the milliseconds that an image takes; PyTorch's own has no outcome."""

    runner: str
    way: str
    milliseconds: float
    outcome: Outcome | None


def say(way: Way, images: Sequence[ndarray]) -> Said:
    """Once more before, for what is prepared at the first call."""
    way(images[0])
    captions, seconds = [], []
    for pixels in images:
        start = time.perf_counter()
        captions.append(way(pixels))
        seconds.append(time.perf_counter() - start)
    return Said(captions, 1000 * statistics.median(seconds))


def by_pytorch(model: ImageCaptioner, beam: int, max_length: int) -> Way:
    decoding = BeamSearch(beam_size=beam, max_length=max_length)
    choir = Choir([ImageCaptioner(model.encoder, model.captioner, model.vocabulary, decoding)])

    def way(pixels: ndarray) -> Caption:
        with torch.no_grad():
            [[said]] = choir.write([torch.from_numpy(pixels)])
        return Caption(said.tokens, said.log_probability, said.weights.numpy(), said.gates.numpy())

    return way


def check_formats(
    model: ImageCaptioner, folder: Path, formats: Sequence[FormatName], card: Card, images: Sequence[ndarray]
) -> list[Row]:
    """What each format says of images (1, 3, S, S), uint8, and first what PyTorch does.

    Raises `UserError` where a format says other things.
    """
    greedy, beam = (say(by_pytorch(model, size, card["max_length"]), images) for size in (1, 3))
    rows = [Row("PyTorch", "greedy", greedy.milliseconds, None), Row("PyTorch", "beam 3", beam.milliseconds, None)]
    for name in formats:
        runner, graphs = FORMATS[name].runner, read_graphs(card["graphs"], name, folder)
        ways: dict[str, tuple[Way, Said]] = {
            "greedy": (partial(write, graphs, card, beam=1), greedy),
            "beam 3": (partial(write, graphs, card, beam=3), beam),
            "in one graph": (partial(_write_alone, graphs, card), greedy),
        }
        for way, (writer, expected) in ways.items():
            said = say(writer, images)
            rows.append(Row(runner, way, said.milliseconds, compare(said.captions, expected.captions, card, runner)))
        together = write_greedy(graphs, card, np.concatenate(images[:TOGETHER]))
        compare(together, greedy.captions[:TOGETHER], card, f"{runner}, given several pictures at once,")
    return rows


def _write_alone(graphs: Graphs, card: Card, pixels: ndarray) -> Caption:
    [caption] = write_greedy(graphs, card, pixels)
    return caption


def compare(captions: Sequence[Caption], expected: Sequence[Caption], card: Card, name: str) -> Outcome:
    """Captions that differ have to be equally likely.

    Raises `UserError` where they are not, or where log p or attention of the same captions differ.
    """
    outcomes = []
    for number, (caption, other) in enumerate(zip(captions, expected, strict=True), start=1):
        outcomes.append(outcome := _compare_one(caption, other))
        if not max(outcome.log_probability, outcome.maps) <= DIFFERENCE:
            raise UserError(
                f"{name} says '{' '.join(spoken(caption, card))}' (log p {caption.log_probability:.3f}) of picture "
                f"{number}, and PyTorch '{' '.join(spoken(other, card))}' ({other.log_probability:.3f}); their "
                f"attention differs by {outcome.maps:.1g}, and nothing is exported: leave that format out"
            )
    same, log_p, maps = zip(*outcomes, strict=True)
    return Outcome(sum(same), max(log_p), max(maps))


def _compare_one(caption: Caption, other: Caption) -> Outcome:
    off = abs(caption.log_probability - other.log_probability) / max(1, abs(other.log_probability))
    if caption.tokens != other.tokens:
        return Outcome(0, off, 0.0)
    pairs = ((caption.weights, other.weights), (caption.gates, other.gates))
    return Outcome(1, off, max(float(np.abs(a - b).max()) for a, b in pairs))


def generated_images(side: int, number: int) -> list[ndarray]:
    """Blurred noise (1, 3, S, S), uint8, each: no photographs, but pixels of which a captioner says something."""
    coarse = torch.rand(number, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=False)
    return [image.unsqueeze(0).numpy() for image in (255 * fine.clamp(0, 1)).to(torch.uint8)]
