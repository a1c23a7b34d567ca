"""A training step of the decoder on stored grids, against the same model as tutorials write it."""

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import describe_machine
from benchmarks.textbook import textbook_trace
from showattendtell.loss import doubly_stochastic_penalty, negative_log_likelihood
from showattendtell.model.attention import SoftAttention
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import LSTMDecoder
from showattendtell.records import Trace
from showattendtell.text.vocabulary import PAD

IMAGES, CAPTIONS_PER_IMAGE, STEPS = 13, 5, 12
REGIONS, REGION_DIM, VOCABULARY_SIZE, WIDTH = 196, 512, 10_000, 512
REPEATS = 5

Forward = Callable[[Captioner, Tensor, Tensor, Tensor], Trace]


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    """13 images with their 5 captions of 12 words, a random grid for each image."""
    regions = torch.rand(IMAGES, REGIONS, REGION_DIM)
    owners = torch.arange(IMAGES).repeat_interleave(CAPTIONS_PER_IMAGE)
    return regions, owners, torch.randint(4, VOCABULARY_SIZE, (len(owners), STEPS))


def time_step(captioner: Captioner, forward: Forward, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[float, float]:
    """(seconds, loss) of forward and backward."""
    captioner.zero_grad()
    started = time.perf_counter()
    trace, mask = forward(captioner, *batch), batch[2] != PAD
    nll = negative_log_likelihood(trace.logits, batch[2])
    loss = (nll + doubly_stochastic_penalty(trace.weights, mask)).mean()
    loss.backward()
    return time.perf_counter() - started, loss.item()


def main() -> None:
    torch.manual_seed(0)
    attention = SoftAttention(REGION_DIM, WIDTH)
    captioner = Captioner(attention, LSTMDecoder(VOCABULARY_SIZE, REGION_DIM, WIDTH, WIDTH, dropout=0.0))
    ways: dict[str, Forward] = {"textbook": textbook_trace, "ours": Captioner.forward}
    batch = make_batch()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {}
    for _ in range(REPEATS + 1):
        for name, forward in ways.items():
            elapsed, losses[name] = time_step(captioner, forward, batch)
            seconds[name].append(elapsed)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    print_table(medians, losses)


def print_table(medians: dict[str, float], losses: dict[str, float]) -> None:
    table = Table(
        "", "ms", "times as fast", "loss", title="training step, forward and backward, fp32", title_justify="left"
    )
    for name, median in medians.items():
        table.add_row(name, f"{1000 * median:.0f}", f"{medians['textbook'] / median:.2f}", f"{losses[name]:.4f}")
    table.caption = f"{describe_machine()}; median of {REPEATS}"
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
