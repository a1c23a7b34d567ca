"""Time of scoring a large vocabulary, with a softmax over all words and with an adaptive softmax.

Only the output layer is measured, on the words of 13 images' captions. The adaptive softmax of torch (Grave et al.
2017) projects rare words to fewer dimensions, and scores them only for targets among them. Beam search needs log p of
all words with both.
"""

from argparse import Namespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.workload import Workload
from showattendtell.text.vocabulary import PAD

WORKLOADS = tuple(Workload(vocabulary=size) for size in (10_000, 40_000))
BEAMS = 250
"""Rows of beam 5 with 50 images."""


def measure(options: Namespace) -> Results:
    return Results([], [figure for workload in WORKLOADS for figure in measure_layers(workload)])


def measure_layers(workload: Workload) -> list[Figure]:
    """Measure the full softmax, and the adaptive one, whose clusters have 5, 20 and 75 % of the words."""
    targets = workload.tokens()[workload.tokens() != PAD]
    hidden = torch.randn(len(targets), workload.embedding, requires_grad=True)
    beams = torch.randn(BEAMS, workload.embedding)
    full = nn.Linear(workload.embedding, workload.vocabulary)
    cutoffs = [workload.vocabulary // 20, workload.vocabulary // 4]
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(workload.embedding, workload.vocabulary, cutoffs)

    @torch.no_grad()
    def score_full() -> Tensor:
        return full(beams).log_softmax(dim=1)

    @torch.no_grad()
    def score_adaptive() -> Tensor:
        return adaptive.log_prob(beams)

    variants = {
        "train full": lambda: F.cross_entropy(full(hidden), targets).backward(),
        "train adaptive": lambda: adaptive(hidden, targets).loss.backward(),
        "score full": score_full,
        "score adaptive": score_adaptive,
    }
    seconds = medians(interleave(variants, seconds=3))
    name = f"adaptive softmax, {workload.vocabulary:,} words"
    training, scoring = (seconds[f"{kind} full"] / seconds[f"{kind} adaptive"] for kind in ("train", "score"))
    return [
        Figure(f"{name}: training, speed-up over full softmax", training),
        Figure(f"{name}: beam search, speed-up over full softmax", scoring),
        Figure(f"full softmax, {workload.vocabulary:,} words: training", 1000 * seconds["train full"], "ms", "lower"),
    ]


if __name__ == "__main__":
    main(measure)
