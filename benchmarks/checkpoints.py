"""Time of writing a checkpoint, for which training waits, and of verifying it when a run is resumed."""

import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians
from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.inference.checkpoints import find_damage
from showattendtell.runtime.files import LAST, PREVIOUS
from showattendtell.training.checkpointing import AtomicCheckpointIO

ROUNDS, VOCABULARY_SIZE = 5, 10_000
ENCODERS = ("vgg19", "efficientnet_lite0")


def make_content(encoder_name: str) -> dict[str, object]:
    """Return the large parts of a checkpoint: all weights, and the optimizer state of the captioner."""
    config = compose("train", ["dataset=flickr8k", f"encoder={encoder_name}", "++encoder.weights=random"])
    encoder = build(config.encoder)
    captioner = build_captioner(config, encoder.region_dim, VOCABULARY_SIZE)
    optimizer = torch.optim.AdamW(captioner.parameters())
    for parameter in captioner.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weights = {"encoder": encoder.state_dict(), "captioner": captioner.state_dict()}
    return {"weights": weights, "optimizer": optimizer.state_dict()}


def measure(options: Namespace) -> Results:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        file, previous, writer = Path(folder, LAST), {"keep": Path(folder, PREVIOUS)}, AtomicCheckpointIO()
        for name in ENCODERS:
            write = partial(writer.save_checkpoint, make_content(name), file, previous)
            times = interleave({"write": write, "verify": partial(find_damage, file)}, seconds=0, min_rounds=ROUNDS)
            writing, verifying = medians(times).values()
            figures += [
                Figure(f"{name}: size", file.stat().st_size / 1e6, "MB", "lower"),
                Figure(f"{name}: writing", 1000 * writing, "ms", "lower"),
                Figure(f"{name}: verifying", 1000 * verifying, "ms", "lower"),
            ]
    return Results([], figures)


if __name__ == "__main__":
    main(measure)
