"""Time and memory of marginal and variational attention, compared with soft attention.

Measured are time and peak memory of a training step with the captions of 13 images, and of 64 images
(`data.group_by_image=false`), and the time of beam search. Sizes are those of `experiment=paper/flickr8k_soft_lite0`.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial

import torch

from benchmarks.harness.figures import Figure
from benchmarks.harness.memory import can_measure, in_subprocess, peak_over_resident, returning_freed_memory
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.workload import Workload
from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.extensions.latent.attention import MarginalAttention, VariationalAttention
from showattendtell.extensions.latent.loss import VariationalLoss
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.interfaces import Attention

WORKLOAD = Workload(13, 5, regions=81, region_dim=1280, vocabulary=2539, embedding=256, hidden=512)
BATCHES = {"13 x 5": WORKLOAD, "64 x 1": WORKLOAD._replace(images=64, captions_per_image=1)}
BEAM_IMAGES, ROUNDS = 20, 2

KINDS: dict[str, tuple[Callable[[int, int], Attention], Callable[..., SoftLoss]]] = {
    "soft": (SoftAttention, SoftLoss),
    "marginal": (MarginalAttention, SoftLoss),
    "variational, reinforce": (VariationalAttention, VariationalLoss),
    "variational, gumbel": (partial(VariationalAttention, estimator="gumbel"), VariationalLoss),
    "variational, exact": (partial(VariationalAttention, estimator="exact"), VariationalLoss),
}
WITH_BEAM = ("soft", "marginal")


def measure(options: Namespace) -> Results:
    captioners = {name: make_captioner(attention) for name, (attention, _) in KINDS.items()}
    seconds = {batch: time_variants(steps(captioners, workload)) for batch, workload in BATCHES.items()}
    seconds["beam 5"] = time_variants(searches(captioners))
    memory = measure_memory() if can_measure() else {}
    figures = [
        Figure(f"{name}, {batch}: time / soft attention's", found / of_batch["soft"], better="lower")
        for batch, of_batch in seconds.items()
        for name, found in of_batch.items()
        if name != "soft"
    ]
    for batch, of_batch in memory.items():
        figures += [Figure(f"{name}, {batch}: peak memory", peak, "MB", "lower") for name, peak in of_batch.items()]
    return Results([], figures)


def time_variants(variants: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    return medians(interleave(variants, seconds=2, min_rounds=ROUNDS))


def make_captioner(attention: Callable[[int, int], Attention]) -> Captioner:
    torch.manual_seed(0)
    decoder = LSTMDecoder(WORKLOAD.vocabulary, WORKLOAD.region_dim, WORKLOAD.embedding, WORKLOAD.hidden)
    return Captioner(attention(WORKLOAD.region_dim, WORKLOAD.hidden), decoder)


def measure_memory() -> dict[str, dict[str, float]]:
    """Return peak memory in MB by batch and attention, measured in another process."""
    with returning_freed_memory():
        return in_subprocess(peak_memories)


def peak_memories() -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    return {batch: {name: peak_memory(name, workload) for name in KINDS} for batch, workload in BATCHES.items()}


def peak_memory(name: str, workload: Workload) -> float:
    return peak_over_resident(steps({name: make_captioner(KINDS[name][0])}, workload)[name])


def steps(captioners: Mapping[str, Captioner], workload: Workload) -> dict[str, Callable[[], None]]:
    """Return the forward and backward pass of each attention, with the label smoothing of the experiment."""
    batch = workload.batch()

    def step(captioner: Captioner, loss: SoftLoss) -> None:
        captioner.train()
        captioner.zero_grad()
        total(loss(captioner, *batch).terms).backward()

    return {name: partial(step, one, KINDS[name][1](label_smoothing=0.14)) for name, one in captioners.items()}


def searches(captioners: Mapping[str, Captioner]) -> dict[str, Callable[[], None]]:
    """Return beam searches. The models are random, so captions do not end early."""
    vocabulary = Vocabulary([*SPECIAL, *map(str, range(WORKLOAD.vocabulary - len(SPECIAL)))])
    regions = torch.rand(BEAM_IMAGES, WORKLOAD.regions, WORKLOAD.region_dim)
    search = BeamSearch(beam_size=5, max_length=12)

    def generate(captioner: Captioner) -> None:
        captioner.eval()
        search.generate(Ensemble([captioner]), [regions], vocabulary)

    return {name: partial(generate, captioners[name]) for name in WITH_BEAM}


if __name__ == "__main__":
    main(measure)
