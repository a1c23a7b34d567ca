"""A training step on the GPU, 64 captions of one length and their grids in its memory: captured, or launched by bits.

A step's many small launches take longer than their work. Captured as a CUDA graph, which batches of one length can
share, it is launched at once. Products are in bf16; the textbook's are in single precision, as the ports have them.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial

import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import CannotRunError, Measured, main
from benchmarks.frame.timing import interleave, medians
from benchmarks.learning import RATE, Learner, Way, package_loss, textbook_optimizer
from benchmarks.textbook import textbook_loss
from benchmarks.workload import Batch, Work
from showattendtell.models.captioner import Captioner

WORK = Work(images=64, each=1, mixed=False, hidden=1000)
CAPTIONS, STEPS = 30_000, 20
"""Of Flickr8k's training split; steps that are timed together."""


def bf16_loss(captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return package_loss(captioner, regions, image_index, tokens)


def capturable(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0, fused=True, capturable=True)


def measure(options: Namespace) -> Measured:
    if not torch.cuda.is_available():
        raise CannotRunError("there is no GPU")
    batch = Batch(*(part.cuda() for part in WORK.batch()))
    textbook = Learner(Way(textbook_loss, textbook_optimizer), WORK, batch)
    eager, captured = (Learner(Way(bf16_loss, capturable), WORK, batch) for _ in range(2))
    ways = {"textbook": textbook.move, "ours, eager": eager.move, "ours, captured": capture(captured)}
    times = interleave({name: partial(repeat, move) for name, move in ways.items()}, seconds=20)
    seconds = {name: taken / STEPS for name, taken in medians(times).items()}
    return Measured([make_table(seconds)], figures(seconds))


def capture(learner: Learner) -> Callable[[], object]:
    """The step as a CUDA graph, after three steps beside the main stream, as torch asks for."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            learner.move()
    torch.cuda.current_stream().wait_stream(aside)
    learner.optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        learner.move()
    return graph.replay


def repeat(move: Callable[[], Tensor | object]) -> None:
    for _ in range(STEPS):
        move()
    torch.cuda.synchronize()


def figures(seconds: dict[str, float]) -> list[Figure]:
    captured, epoch = seconds["ours, captured"], CAPTIONS / WORK.captions
    return [
        Figure("GPU, 64 x 1: captured step: speed / eager's", seconds["ours, eager"] / captured, goal=5),
        Figure("GPU, 64 x 1: captured step: speed / textbook's", seconds["textbook"] / captured),
        Figure("GPU: Flickr8k's 30,000 captions", epoch * captured, "s", "lower", goal=2),
        *(Figure(f"GPU, 64 x 1, {name}: a step", 1000 * needed, "ms", "lower") for name, needed in seconds.items()),
    ]


def make_table(seconds: dict[str, float]) -> Table:
    table = Table("", title=f"{WORK.captions} captions, n {WORK.hidden}, on the GPU", title_justify="left")
    for column in ("ms", "times as fast", "Flickr8k's captions, s"):
        table.add_column(column, justify="right")
    for name, needed in seconds.items():
        faster = f"{seconds['textbook'] / needed:.1f}"
        table.add_row(name, f"{1000 * needed:.2f}", faster, f"{CAPTIONS / WORK.captions * needed:.2f}")
    return table


if __name__ == "__main__":
    main(measure)
