"""Captions written for stored grids: many images at a time, one at a time, and as tutorials search, one at a time.

textbook  every beam has a copy of its image's regions and projects it at every step; all words of all beams are ranked
ours      the package's own way in single precision; also with products in bfloat16, where the processor has them
floor     the floating-point operations of our matrix products, over the rate of such products in the same run

Ways take turns; rates are of the medians of the turns. The model is the paper's soft attention with random weights, of
which some are set so that captions end as reference captions do.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.floor import MatrixRate
from benchmarks.frame.figures import Figure
from benchmarks.frame.machine import count, this_machine
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import interleave, medians
from benchmarks.learning import torch_products
from benchmarks.textbook import textbook_beam
from benchmarks.training_step import FASTER, matrix_rates
from benchmarks.workload import Work
from benchmarks.writers import endless_writer, usual_writer, varied_regions
from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble, Precision
from showattendtell.models.captioner import Captioner

WORK = Work(images=200, each=1)

TEXTBOOK, ONE, MANY, ALL = "textbook, one image", "ours, one image", "ours, 50 images", f"ours, {WORK.images} images"
HALF = f"{MANY}, bf16"
IMAGES = {TEXTBOOK: 8, ONE: 8, MANY: 50, HALF: 50, ALL: WORK.images}
"""The images that each way writes for in a turn; the first two take them one at a time."""

Tokens = list[list[int]]


class Case(NamedTuple):
    """A search by a model.

    seconds  to give it
    goals    at least so many times as fast as the textbook, by way
    """

    name: str
    writer: Callable[[Work, Tensor], Captioner]
    beam_size: int
    max_length: int
    ways: Sequence[str]
    seconds: float
    goals: Mapping[str, float] = {}


USUAL = Case("beam 5", usual_writer, 5, 30, (TEXTBOOK, ONE, MANY, ALL, HALF), 20, {MANY: 9, ONE: 1.5, HALF: 15})
CASES = (
    USUAL,
    Case("beam 5, all of 12 words", endless_writer, 5, 12, (TEXTBOOK, ONE, MANY), 7),
    Case("greedy", usual_writer, 1, 30, (TEXTBOOK, ONE, MANY, ALL), 6),
)
TWO_THREADS = USUAL._replace(name="beam 5, 2 threads", ways=(TEXTBOOK, ONE, MANY), seconds=6, goals={})


class Timed(NamedTuple):
    """What was measured of a case: each way's captions and seconds an image, the floor's seconds, the turns."""

    captions: dict[str, Tokens]
    seconds: dict[str, float]
    floor: float
    turns: int


def measure(options: Namespace) -> Measured:
    rates, regions = matrix_rates(WORK), varied_regions(WORK)
    faster = rates[torch.bfloat16] / rates[torch.float32]
    missing = "" if faster > FASTER else f"bf16 products {faster:.1f} x as fast as fp32"
    parts = [measure_case(case, regions, missing) for case in CASES]
    if options.threads == 1 and this_machine().cores > 1:
        torch.set_num_threads(2)
        parts.append(measure_case(TWO_THREADS, regions, missing))
        torch.set_num_threads(1)
    tables = [table for part in parts for table in part.tables]
    notes = [f"bf16 is not measured: on this machine {missing}"] if missing else []
    return Measured(tables, [figure for part in parts for figure in part.figures], notes)


def measure_case(case: Case, regions: Tensor, missing: str) -> Measured:
    timed = time_case(case, [way for way in case.ways if way != HALF or not missing], regions)
    return Measured([make_table(case, timed)], list(figures(case, timed, missing)))


def time_case(case: Case, ways: Sequence[str], regions: Tensor) -> Timed:
    captioner, rate = case.writer(WORK, regions), MatrixRate(WORK, torch.float32)
    write = {way: search(case, way, captioner) for way in ways}
    turns: dict[str, Callable[[], object]] = {
        way: lambda search=write[way], seen=regions[: IMAGES[way]]: search(seen) for way in ways
    }
    times = interleave({**turns, "floor": rate}, case.seconds)
    with FlopCounterMode(display=False) as counter:
        captions = {MANY: write[MANY](regions[: IMAGES[MANY]])}
    captions |= {way: write[way](regions[: IMAGES[MANY]]) for way in ways if way != MANY}
    seconds = {way: median / IMAGES[way] for way, median in medians(times).items() if way in write}
    floor = counter.get_total_flops() / rate.best / IMAGES[MANY]
    return Timed(captions, seconds, floor, len(times[TEXTBOOK]))


def search(case: Case, way: str, captioner: Captioner) -> Callable[[Tensor], Tokens]:
    """What a way makes of regions (I, L, D)."""
    precision: Precision = "bfloat16" if way == HALF else "float32"
    decoding = BeamSearch(beam_size=case.beam_size, max_length=case.max_length, precision=precision)
    ensemble, size = Ensemble([captioner], precision), captioner.decoder.word_scores.out_features
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(size - len(SPECIAL)))])

    def ours(regions: Tensor) -> Tokens:
        return [best.tokens for [best] in decoding.generate(ensemble, [regions], vocabulary)]

    def textbook(regions: Tensor) -> Tokens:
        with torch_products():
            return [textbook_beam(captioner, regions, case.beam_size, case.max_length)]

    if way not in (TEXTBOOK, ONE):
        return ours
    alone = textbook if way == TEXTBOOK else ours
    return lambda regions: [tokens for image in regions.split(1) for tokens in alone(image)]


def same(timed: Timed, way: str) -> int:
    """How many captions are the textbook's."""
    return sum(ours == theirs for ours, theirs in zip(timed.captions[way], timed.captions[TEXTBOOK], strict=True))


def figures(case: Case, timed: Timed, missing: str) -> Iterator[Figure]:
    for way in case.ways:
        name = f"{case.name}, {way.partition(', ')[2]}"
        if way not in timed.seconds:
            yield Figure(f"{name}: speed / textbook's", None, goal=case.goals.get(way), note=missing)
            continue
        if way != TEXTBOOK:
            speed = timed.seconds[TEXTBOOK] / timed.seconds[way]
            yield Figure(f"{name}: speed / textbook's", speed, goal=case.goals.get(way))
        yield Figure(f"{case.name}, {way}", 1 / timed.seconds[way], "images/s")
    yield Figure(f"{case.name}, 50 images: time / floor", timed.seconds[MANY] / timed.floor, better="lower")
    share = 100 * min(same(timed, way) for way in timed.captions if way != HALF) / IMAGES[MANY]
    yield Figure(f"{case.name}: captions that are the textbook's", share, "%", goal=100 if case.goals else None)


def make_table(case: Case, timed: Timed) -> Table:
    lengths = torch.tensor([len(tokens) for tokens in timed.captions[MANY]], dtype=torch.float)
    words = f"{lengths.mean():.1f} words, standard deviation {lengths.std():.1f}"
    table = Table("", title=f"{case.name}: {words}; {count(timed.turns, 'turn')}", title_justify="left")
    for column in ("images a second", "times the textbook", "times the floor", "same captions"):
        table.add_column(column, justify="right")
    for way, seconds in timed.seconds.items():
        times_floor = f"{seconds / timed.floor:.2f}" if way == MANY else ""
        agreeing = f"{same(timed, way)} of {IMAGES[MANY]}"
        table.add_row(way, f"{1 / seconds:.1f}", f"{timed.seconds[TEXTBOOK] / seconds:.1f}", times_floor, agreeing)
    table.add_row("floor", f"{1 / timed.floor:.1f}")
    return table


if __name__ == "__main__":
    main(measure)
