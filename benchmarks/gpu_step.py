"""Training step on a GPU, as separate kernels and captured as a CUDA graph, compared with the textbook implementation.

The batch has 64 captions of one length, in GPU memory. Ours computes products in bfloat16, of features in bfloat16, the
textbook in float32 and in bfloat16. The many small kernels of a step take longer to launch than to run; a CUDA graph
launches all of them at once. Without Triton, torch's kernels compute the same.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.implementations import Implementation, Trainer, bf16_loss, package_optimizer, textbook_optimizer
from benchmarks.textbook import textbook_loss
from benchmarks.workload import Batch, Workload
from showattendtell.models import kernels
from showattendtell.models.captioner import Captioner

WORKLOAD = Workload(images=64, captions_per_image=1, mixed_lengths=False, hidden=1000)
TEXTBOOK, EAGER, CAPTURED = "textbook", "ours, eager", "ours, CUDA graph"

CAPTIONS, STEPS = 30_000, 20
"""Captions of Flickr8k's training split; steps per round."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cpu tries the script without a GPU and without CUDA graphs")


def open_device(options: Namespace) -> torch.device:
    """Return the device of the options.

    Raises:
        CannotRunError: there is no GPU.
    """
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CannotRunError("there is no GPU")
    return device


def bf16_textbook_loss(captioner: Captioner, *batch: Tensor) -> Tensor:
    with torch.autocast(batch[0].device.type, torch.bfloat16):
        return textbook_loss(captioner, *batch)


def capturable_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return package_optimizer(model, capturable=next(model.parameters()).is_cuda)


def capture(step: Callable[..., Tensor], *inputs: Tensor, pool: Any = None) -> Callable[..., object]:
    """Capture a training step as a CUDA graph, after three warm-up steps on a side stream, as PyTorch requires.

    Args:
        inputs: arguments of the step; calls of the graph may pass other values of the same shapes.
        pool: memory pool, shared by graphs that run one after the other.

    Returns:
        A function that copies its arguments into the memory of the graph and replays it. On a CPU, the step itself.
        The function keeps the step, since the graph reads the memory of its model.
    """
    if inputs[0].device.type == "cpu":
        return step
    inputs = tuple(value.clone() for value in inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step(*inputs)

    return partial(replay, graph, inputs, step)


def replay(graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor], step: object, *batch: Tensor) -> None:
    for memory, value in zip(inputs, batch, strict=True):
        memory.copy_(value)
    graph.replay()


def run_steps(steps: Iterable[Callable[[], object]]) -> None:
    """Run the steps, and wait for the GPU at the end."""
    for step in steps:
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(options: Namespace) -> Results:
    device = open_device(options)
    batch = Batch(*(part.to(device) for part in WORKLOAD.batch()))
    half = batch._replace(regions=batch.regions.bfloat16())
    textbook, bf16_textbook = (Implementation(loss, textbook_optimizer) for loss in (textbook_loss, bf16_textbook_loss))
    ours = Implementation(bf16_loss, capturable_optimizer)

    def make_step(implementation: Implementation) -> Callable[..., Tensor]:
        return Trainer(implementation, WORKLOAD.captioner().to(device)).training_step

    variants = {
        TEXTBOOK: partial(make_step(textbook), *batch),
        "textbook, bf16": partial(make_step(bf16_textbook), *batch),
        EAGER: partial(make_step(ours), *half),
        CAPTURED: partial(capture(make_step(ours), *half), *half),
    }
    if device.type == "cuda":
        with patch.object(kernels, "device_module", lambda name, device: None):
            variants["ours, CUDA graph, without Triton"] = partial(capture(make_step(ours), *half), *half)
    times = interleave({name: partial(run_steps, STEPS * [step]) for name, step in variants.items()}, seconds=15)
    seconds = {name: taken / STEPS for name, taken in medians(times).items()}
    return Results([], figures(seconds))


def figures(seconds: dict[str, float]) -> list[Figure]:
    captured, epoch = seconds[CAPTURED], CAPTIONS / WORKLOAD.captions
    return [
        Figure("GPU, 64 x 1, CUDA graph: speed-up over eager", seconds[EAGER] / captured),
        Figure("GPU, 64 x 1, CUDA graph: speed-up over textbook", seconds[TEXTBOOK] / captured),
        Figure("GPU, CUDA graph: epoch of Flickr8k", epoch * captured, "s", "lower", goal=1),
        *(Figure(f"GPU, 64 x 1, {name}: step", 1000 * needed, "ms", "lower") for name, needed in seconds.items()),
    ]


if __name__ == "__main__":
    main(measure, more_options=add_options)
