"""What a checkpoint costs: training waits while it is written; it is verified when a run goes on."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from showattendtell.checkpoint import LAST, PREVIOUS, WholeCheckpoints, find_damage
from showattendtell.config.build import build, build_captioner
from showattendtell.config.compose import compose

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


def main() -> None:
    table = Table("encoder", "MB", "s to write", "s to verify", title="a checkpoint", title_justify="left")
    with tempfile.TemporaryDirectory() as folder:
        file, kept, writer = Path(folder, LAST), {"keep": Path(folder, PREVIOUS)}, WholeCheckpoints()
        for name in ENCODERS:
            content = content_of(name)
            writing = seconds_of(lambda content=content: writer.save_checkpoint(content, file, kept))  # type: ignore[misc]
            verifying = seconds_of(lambda: find_damage(file))
            table.add_row(name, f"{file.stat().st_size / 1e6:.0f}", f"{writing:.2f}", f"{verifying:.2f}")
    table.caption = f"{describe_machine()}; median of {REPEATS}"
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
