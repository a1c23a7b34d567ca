"""What a checkpoint costs: training waits while it is written; it is verified when a run is resumed."""

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.inference.checkpoints import find_damage
from showattendtell.runtime.files import LAST, PREVIOUS
from showattendtell.training.checkpointing import AtomicCheckpointIO

REPEATS = 5
VOCABULARY_SIZE = 10_000
ENCODERS = ("vgg19", "efficientnet_lite0")


def content_of(encoder_name: str) -> dict[str, object]:
    """What is large in a checkpoint: all weights, and of the captioner's the two means that Adam keeps."""
    config, _ = compose("train", ["dataset=flickr8k", f"encoder={encoder_name}", "++encoder.weights=random"])
    encoder = build(config.encoder)
    captioner = build_captioner(config, encoder.region_dim, VOCABULARY_SIZE)
    optimizer = torch.optim.AdamW(captioner.parameters())
    for parameter in captioner.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weights = {"encoder": encoder.state_dict(), "captioner": captioner.state_dict()}
    return {"weights": weights, "optimizer": optimizer.state_dict()}


def seconds_of(act: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measure(options: Namespace) -> Measured:
    table = Table("encoder", "MB", "s to write", "s to verify", title="a checkpoint", title_justify="left")
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        file, kept, writer = Path(folder, LAST), {"keep": Path(folder, PREVIOUS)}, AtomicCheckpointIO()
        for name in ENCODERS:
            content = content_of(name)
            writing = seconds_of(lambda content=content: writer.save_checkpoint(content, file, kept))  # type: ignore[misc]
            verifying = seconds_of(lambda: find_damage(file))
            megabytes = file.stat().st_size / 1e6
            table.add_row(name, f"{megabytes:.0f}", f"{writing:.2f}", f"{verifying:.2f}")
            figures += [
                Figure(f"{name}: size", megabytes, "MB", "lower"),
                Figure(f"{name}: writing", 1000 * writing, "ms", "lower"),
                Figure(f"{name}: verifying", 1000 * verifying, "ms", "lower"),
            ]
    table.caption = f"median of {REPEATS}"
    return Measured([table], figures)


if __name__ == "__main__":
    main(measure)
