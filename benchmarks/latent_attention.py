"""What the sum over latent regions costs: marginal and variational attention, compared with soft attention.

Time and peak memory of a training step of captions of 13 images, and of 64 images (`data.group_by_image=false`), and
time of a beam search. The sizes are those of `experiment=paper/flickr8k_soft_lite0`.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial

import torch
from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.memory import apart, can_measure, giving_back, peak_over_resident
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import interleave, medians
from benchmarks.workload import Work
from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.variational import VariationalLoss
from showattendtell.models.attention import Attention, SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.latent_attention import MarginalAttention, VariationalAttention

WORK = Work(13, 5, regions=81, region_dim=1280, vocabulary=2539, embedding=256, hidden=512)
BATCHES = {"13 x 5": WORK, "64 x 1": WORK._replace(images=64, each=1)}
BEAMS = 20
"""Images of the beam search."""

KINDS: dict[str, tuple[Callable[[int, int], Attention], Callable[..., SoftLoss]]] = {
    "soft": (SoftAttention, SoftLoss),
    "marginal": (MarginalAttention, SoftLoss),
    "variational, reinforce": (VariationalAttention, VariationalLoss),
    "variational, gumbel": (partial(VariationalAttention, estimator="gumbel"), VariationalLoss),
    "variational, exact": (partial(VariationalAttention, estimator="exact"), VariationalLoss),
}
SEARCHED = ("soft", "marginal")


def measure(options: Namespace) -> Measured:
    captioners = {name: make_captioner(attention) for name, (attention, _) in KINDS.items()}
    seconds = {batch: medians(interleave(steps(captioners, work), seconds=3)) for batch, work in BATCHES.items()}
    seconds["beam 5"] = medians(interleave(searches(captioners), seconds=2))
    memory = measure_memory() if can_measure() else {}
    figures = [
        Figure(f"{name}, {batch}: time / soft's", found / of_batch["soft"], better="lower")
        for batch, of_batch in seconds.items()
        for name, found in of_batch.items()
        if name != "soft"
    ]
    for batch, of_batch in memory.items():
        figures += [Figure(f"{name}, {batch}: peak memory", peak, "MB", "lower") for name, peak in of_batch.items()]
    return Measured([make_table(seconds, memory)], figures)


def make_captioner(attention: Callable[[int, int], Attention]) -> Captioner:
    torch.manual_seed(0)
    decoder = LSTMDecoder(WORK.vocabulary, WORK.region_dim, WORK.embedding, WORK.hidden)
    return Captioner(attention(WORK.region_dim, WORK.hidden), decoder)


def measure_memory() -> dict[str, dict[str, float]]:
    """MB by batch and attention, each attention in a process of its own."""
    with giving_back():
        peaks = {name: apart(peak_memories, name) for name in KINDS}
    return {batch: {name: of_batches[batch] for name, of_batches in peaks.items()} for batch in BATCHES}


def peak_memories(name: str) -> dict[str, float]:
    torch.set_num_threads(1)
    peaks = {}
    for batch, work in BATCHES.items():
        step = steps({name: make_captioner(KINDS[name][0])}, work)[name]
        step()  # allocates gradients
        peaks[batch] = peak_over_resident(step)
    return peaks


def steps(captioners: Mapping[str, Captioner], work: Work) -> dict[str, Callable[[], None]]:
    """A forward and a backward pass of each attention, with the label smoothing of the recipe."""
    batch = work.batch()

    def step(captioner: Captioner, loss: SoftLoss) -> None:
        captioner.train()
        captioner.zero_grad()
        total(loss(captioner, *batch).terms).backward()

    return {name: partial(step, one, KINDS[name][1](label_smoothing=0.14)) for name, one in captioners.items()}


def searches(captioners: Mapping[str, Captioner]) -> dict[str, Callable[[], None]]:
    """Beam search of random models, which end no caption early."""
    vocabulary = Vocabulary([*SPECIAL, *map(str, range(WORK.vocabulary - len(SPECIAL)))])
    regions = torch.rand(BEAMS, WORK.regions, WORK.region_dim)
    search = BeamSearch(beam_size=5, max_length=12)

    def generate(captioner: Captioner) -> None:
        captioner.eval()
        search.generate(Ensemble([captioner]), [regions], vocabulary)

    return {name: partial(generate, captioners[name]) for name in SEARCHED}


def make_table(seconds: Mapping[str, Mapping[str, float]], memory: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title="time in ms, and as a multiple of soft attention's", title_justify="left")
    table.add_column("attention")
    for batch in seconds:
        table.add_column(batch, justify="right")
    for batch in memory:
        table.add_column(f"{batch}, peak memory, MB", justify="right")
    for name in KINDS:
        cells = [
            f"{1000 * found[name]:.0f} ({found[name] / found['soft']:.2f})" if name in found else ""
            for found in seconds.values()
        ]
        table.add_row(name, *cells, *(f"{of_batch[name]:.0f}" for of_batch in memory.values()))
    return table


if __name__ == "__main__":
    main(measure)
