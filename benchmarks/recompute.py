"""What `encoder.recompute=true` saves of memory where the encoder is trained, and what it costs of time."""

from argparse import Namespace
from typing import NamedTuple

import torch
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.memory import apart, can_measure, giving_back, peak_over_resident
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import interleave, medians
from showattendtell.models.encoder import Encoder

NETWORKS: dict[str, int] = {"tf_efficientnet_lite0": 16, "vgg19": 16, "vit_small_patch16_224": 16}
"""And the stride of the grid."""

SECONDS = 3.0
"""For the times of a network."""


class Pass(NamedTuple):
    """Forward and backward over one photograph."""

    encoder: Encoder
    pixels: torch.Tensor

    def __call__(self) -> None:
        self.encoder.zero_grad(set_to_none=False)
        self.encoder(self.pixels).square().mean().backward()


def make_pass(network: str, recompute: bool) -> Pass:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = Encoder(network, NETWORKS[network], "random", trainable=True, recompute=recompute)
    return Pass(encoder, torch.rand(1, 3, 224, 224))


def peak_memory(network: str, recompute: bool) -> float:
    """MB beyond what the network and its gradients take."""
    work = make_pass(network, recompute)
    for parameter in work.encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return peak_over_resident(work)


def measure(options: Namespace) -> Measured:
    table = Table("network", title="one photograph of 224 x 224, float32", title_justify="left")
    for column in ("MB", "MB, recomputed", "times as long"):
        table.add_column(column, justify="right")
    figures = []
    for network in NETWORKS:
        taken = medians(interleave({str(way): make_pass(network, way) for way in (False, True)}, SECONDS))
        longer = taken["True"] / taken["False"]
        kept, less = (_peak(network, way) for way in (False, True))
        table.add_row(network, f"{kept:.0f}", f"{less:.0f}", f"{longer:.2f}")
        figures += [
            Figure(f"{network}: memory recomputed, of that kept", less / kept, "times", "lower"),
            Figure(f"{network}: time recomputed, of that kept", longer, "times", "lower"),
        ]
    return Measured([table], figures)


def _peak(network: str, recompute: bool) -> float:
    if not can_measure():
        return float("nan")
    with giving_back():
        return apart(peak_memory, network, recompute)


if __name__ == "__main__":
    main(measure)
