"""Peak memory and time of fine-tuning an encoder, with and without `encoder.gradient_checkpointing`.

A step has one photograph of 224 x 224 pixels, in float32.
"""

from argparse import Namespace
from collections.abc import Callable

import torch

from benchmarks.harness.figures import Figure
from benchmarks.harness.memory import can_measure, in_subprocess, peak_over_resident, returning_freed_memory
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import interleave, medians
from showattendtell.models.encoder import Encoder

NETWORKS, STRIDE, SIDE = ("tf_efficientnet_lite0", "resnet50", "vit_small_patch16_224"), 16, 224
SECONDS = 3.0
"""Time budget per network."""


def make_step(network: str, recompute: bool, side: int) -> Callable[[], None]:
    """Return the forward and backward pass of a photograph."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = Encoder(network, STRIDE, "random", trainable=True, gradient_checkpointing=recompute)
    pixels = torch.rand(1, 3, side, side)

    def step() -> None:
        encoder.zero_grad(set_to_none=False)
        encoder(pixels).square().mean().backward()

    return step


def peak_memories(network: str, side: int) -> list[float]:
    """Return the peak memory of a step in MB without and with recompute, not counting the network and its gradients."""
    return [peak_over_resident(make_step(network, recompute, side)) for recompute in (False, True)]


def measure(options: Namespace) -> Results:
    if not can_measure():
        raise CannotRunError("measuring memory needs Linux's /proc")
    figures = []
    for network in NETWORKS:
        steps = {str(on): make_step(network, on, SIDE) for on in (False, True)}
        times = medians(interleave(steps, SECONDS, min_rounds=2))
        slowdown = times["True"] / times["False"]
        with returning_freed_memory():
            stored, recomputed = in_subprocess(peak_memories, network, SIDE)
        figures += [
            Figure(f"{network}: memory without recompute", stored, "MB", "lower"),
            Figure(f"{network}: memory with recompute / without", recomputed / stored, "times", "lower"),
            Figure(f"{network}: time with recompute / without", slowdown, "times", "lower"),
        ]
    return Results([], figures)


if __name__ == "__main__":
    main(measure)
