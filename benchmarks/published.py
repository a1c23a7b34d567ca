"""Training step of a popular port, as published by its authors, compared with that of this package.

The port is sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning. Its decoder is imported from a clone, and its loss is that
of its train.py. Both models have the same sizes, no dropout and the same batches. The port scores with ReLU instead of
tanh and has no deep output, so its step has slightly fewer operations.

  git clone https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning
  python -m benchmarks.published --port a-PyTorch-Tutorial-to-Image-Captioning
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.implementations import OURS, Implementation, Trainer, make_step, textbook_optimizer
from benchmarks.workload import Workload
from showattendtell.text.vocabulary import PAD, START

PORT = "port"

WORKLOADS = {"13 x 5": Workload(), "64 x 1": Workload(images=64, captions_per_image=1, mixed_lengths=False)}
SECONDS = 20


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--port", type=Path, help="the clone of the port")


def measure(options: Namespace) -> Results:
    return Results([], [figure for name in WORKLOADS for figure in measure_workload(name, options.port)])


def measure_workload(name: str, port: Path | None) -> Sequence[Figure]:
    workload = WORKLOADS[name]
    trainer = Trainer(Implementation(published_loss, textbook_optimizer), published_decoder(port, workload))
    steps = {PORT: partial(trainer.step, *workload.batch()), OURS: make_step(OURS, workload)}
    seconds = medians(interleave(steps, SECONDS))
    return [
        Figure(f"{name}: speed-up over the port", seconds[PORT] / seconds[OURS]),
        *(Figure(f"{name}, {key}: step", 1000 * step, "ms", "lower") for key, step in seconds.items()),
    ]


def published_decoder(port: Path | None, workload: Workload) -> nn.Module:
    """Return the port's decoder, imported from its clone.

    Raises:
        CannotRunError: no clone is given, or it has no models.py.
    """
    if port is None or not (port / "models.py").is_file():
        raise CannotRunError("give the clone of the port as --port FOLDER; see --help")
    sys.path.insert(0, str(port.resolve()))
    torch.manual_seed(0)
    return import_module("models").DecoderWithAttention(
        attention_dim=workload.attention,
        embed_dim=workload.embedding,
        decoder_dim=workload.hidden,
        vocab_size=workload.vocabulary,
        encoder_dim=workload.region_dim,
        dropout=0.0,
    )


def published_loss(decoder: nn.Module, regions: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
    """Return the loss of the port's train.py: mean cross-entropy of the words plus the doubly stochastic penalty.

    Args:
        regions: (I, L, D).
        image_index: (B,) the image of each caption.
        tokens: (B, T) the targets, `<pad>` after `<eos>`.
    """
    captions = F.pad(tokens, (1, 0), value=START)
    lengths = (captions != PAD).sum(dim=1, keepdim=True)
    scores, captions, steps, weights, _ = decoder(regions[image_index], captions, lengths)
    packed_scores, targets = (
        pack_padded_sequence(part, steps, batch_first=True).data for part in (scores, captions[:, 1:])
    )
    return F.cross_entropy(packed_scores, targets) + (1 - weights.sum(dim=1)).square().mean()


if __name__ == "__main__":
    main(measure, more_options=add_options)
