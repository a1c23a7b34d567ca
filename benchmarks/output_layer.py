"""What scoring a large vocabulary costs, and what an adaptive softmax would save.

The output layer alone, on the words of 13 images' captions: all words of the vocabulary, or torch's adaptive softmax
(Grave et al. 2017), which projects rare words to fewer dimensions and scores them only where one of them is the target.
Beams need log p of all words either way.
"""

from argparse import Namespace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import interleave, medians
from benchmarks.workload import Work
from showattendtell.data.vocabulary import PAD

VOCABULARIES = (10_000, 40_000)
BEAMS = 250
"""Rows that beam 5 has of 50 images."""


class Layer(NamedTuple):
    """Seconds to train it on the batch's words, and to give log p of all words to the beams; its parameters."""

    training: float
    scoring: float
    parameters: int


def measure(options: Namespace) -> Measured:
    layers = {size: measure_layers(Work(vocabulary=size)) for size in VOCABULARIES}
    return Measured([make_table(layers)], [figure for size in layers for figure in figures(size, *layers[size])])


def measure_layers(work: Work) -> tuple[Layer, Layer]:
    """All words, and the adaptive softmax: its commonest words are a twentieth, its rarest three quarters of all."""
    targets = work.tokens()[work.tokens() != PAD]
    hidden = torch.randn(len(targets), work.embedding, requires_grad=True)
    beams = torch.randn(BEAMS, work.embedding)
    every = nn.Linear(work.embedding, work.vocabulary)
    ends = [work.vocabulary // 20, work.vocabulary // 4]
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(work.embedding, work.vocabulary, ends)

    @torch.no_grad()
    def score_all() -> Tensor:
        return every(beams).log_softmax(dim=1)

    @torch.no_grad()
    def score_adaptive() -> Tensor:
        return adaptive.log_prob(beams)

    ways = {
        "train all": lambda: F.cross_entropy(every(hidden), targets).backward(),
        "train adaptive": lambda: adaptive(hidden, targets).loss.backward(),
        "score all": score_all,
        "score adaptive": score_adaptive,
    }
    seconds = medians(interleave(ways, seconds=3))
    return (
        Layer(seconds["train all"], seconds["score all"], count_parameters(every)),
        Layer(seconds["train adaptive"], seconds["score adaptive"], count_parameters(adaptive)),
    )


def count_parameters(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def figures(size: int, every: Layer, adaptive: Layer) -> list[Figure]:
    name = f"adaptive softmax, {size:,} words"
    return [
        Figure(f"{name}: speed in training / all words'", every.training / adaptive.training),
        Figure(f"{name}: speed in a search / all words'", every.scoring / adaptive.scoring),
        Figure(f"all of {size:,} words: forward and backward", 1000 * every.training, "ms", "lower"),
    ]


def make_table(layers: dict[int, tuple[Layer, Layer]]) -> Table:
    table = Table(title="the output layer alone", title_justify="left")
    table.add_column("words", justify="right")
    table.add_column("softmax")
    for column in ("forward and backward, ms", f"log p of all, {BEAMS} rows, ms", "parameters, millions"):
        table.add_column(column, justify="right")
    for size, found in layers.items():
        for name, (training, scoring, parameters) in zip(("all", "adaptive"), found, strict=True):
            milliseconds = [f"{1000 * seconds:.0f}" for seconds in (training, scoring)]
            table.add_row(f"{size:,}", name, *milliseconds, f"{parameters / 1e6:.1f}")
    return table


if __name__ == "__main__":
    main(measure)
