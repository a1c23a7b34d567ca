"""Beam search on stored features, compared with a textbook implementation and a lower bound.

textbook     one image at a time: every beam projects its own copy of the regions, and all words of all beams are ranked
ours         the package in float32, and with products in bfloat16 if the processor has them
lower bound  floating-point operations of our matrix products, divided by the rate of such products

Variants take turns, and rates are from medians over the rounds. The model is the paper's soft attention with random
weights, some of which are set so that captions are as long as reference captions.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.captioners import endless_captioner, typical_captioner, varied_regions
from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import count, this_machine
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.implementations import torch_products
from benchmarks.lower_bound import MatrixRate
from benchmarks.textbook import textbook_beam
from benchmarks.training_step import joined, reason_against_bf16
from benchmarks.workload import Workload
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble, Precision
from showattendtell.models.captioner import Captioner
from showattendtell.text.vocabulary import SPECIAL, Vocabulary

WORKLOAD = Workload(images=200, captions_per_image=1)

TEXTBOOK, ONE, MANY, ALL = "textbook, one image", "ours, one image", "ours, 50 images", "ours, 200 images"
BF16 = "ours, 50 images, bf16"
IMAGES = {TEXTBOOK: 8, ONE: 8, MANY: 50, BF16: 50, ALL: WORKLOAD.images}
"""Images per round; the first two variants process them one at a time."""

Tokens = list[list[int]]


class Case(NamedTuple):
    """A search with a captioner.

    seconds   time budget
    speed_up  goals: minimum speed-up over the textbook, by variant
    """

    name: str
    captioner: Callable[[Workload, Tensor], Captioner]
    beam_size: int
    max_length: int
    variants: Sequence[str]
    seconds: float
    speed_up: Mapping[str, float] = {}


BEAM = Case("beam 5", typical_captioner, 5, 30, (TEXTBOOK, ONE, MANY, ALL, BF16), 20, {MANY: 9, ONE: 1.5, BF16: 15})
CASES = (
    BEAM,
    Case("beam 5, all of 12 words", endless_captioner, 5, 12, (TEXTBOOK, ONE, MANY), 7),
    Case("greedy", typical_captioner, 1, 30, (TEXTBOOK, ONE, MANY, ALL), 6),
)
TWO_THREADS = BEAM._replace(name="beam 5, 2 threads", variants=(TEXTBOOK, ONE, MANY), seconds=6, speed_up={})


class Timed(NamedTuple):
    """Captions and seconds per image by variant, the lower bound in seconds per image, and the number of rounds."""

    captions: dict[str, Tokens]
    seconds: dict[str, float]
    lower_bound: float
    rounds: int


def measure(options: Namespace) -> Results:
    regions, no_bf16 = varied_regions(WORKLOAD), reason_against_bf16(WORKLOAD)
    parts = [measure_case(case, regions, no_bf16) for case in CASES]
    if options.threads == 1 and this_machine().cores > 1:
        torch.set_num_threads(2)
        parts.append(measure_case(TWO_THREADS, regions, no_bf16))
        torch.set_num_threads(1)
    return joined(parts, no_bf16)


def measure_case(case: Case, regions: Tensor, no_bf16: str) -> Results:
    timed = time_case(case, [name for name in case.variants if name != BF16 or not no_bf16], regions)
    return Results([make_table(case, timed)], list(figures(case, timed, no_bf16)))


def time_case(case: Case, names: Sequence[str], regions: Tensor) -> Timed:
    captioner, rate = case.captioner(WORKLOAD, regions), MatrixRate(WORKLOAD, torch.float32)
    search = {name: make_search(case, name, captioner) for name in names}
    variants: dict[str, Callable[[], object]] = {
        name: lambda search=search[name], images=regions[: IMAGES[name]]: search(images) for name in names
    }
    times = interleave({**variants, "lower bound": rate}, case.seconds)
    with FlopCounterMode(display=False) as counter:
        captions = {MANY: search[MANY](regions[: IMAGES[MANY]])}
    captions |= {name: search[name](regions[: IMAGES[MANY]]) for name in names if name != MANY}
    seconds = {name: median / IMAGES[name] for name, median in medians(times).items() if name in search}
    return Timed(captions, seconds, counter.get_total_flops() / rate.best / IMAGES[MANY], len(times[TEXTBOOK]))


def make_search(case: Case, variant: str, captioner: Captioner) -> Callable[[Tensor], Tokens]:
    """Return a function from regions (I, L, D) to the captions' tokens."""
    precision: Precision = "bfloat16" if variant == BF16 else "float32"
    decoding = BeamSearch(beam_size=case.beam_size, max_length=case.max_length, precision=precision)
    ensemble, size = Ensemble([captioner], precision), captioner.decoder.word_scores.out_features
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(size - len(SPECIAL)))])

    def ours(regions: Tensor) -> Tokens:
        return [best.tokens for [best] in decoding.generate(ensemble, [regions], vocabulary)]

    def textbook(regions: Tensor) -> Tokens:
        with torch_products():
            return [textbook_beam(captioner, regions, case.beam_size, case.max_length)]

    if variant not in (TEXTBOOK, ONE):
        return ours
    search = textbook if variant == TEXTBOOK else ours
    return lambda regions: [tokens for image in regions.split(1) for tokens in search(image)]


def equal_captions(timed: Timed, variant: str) -> int:
    """Return how many captions are equal to the textbook's."""
    return sum(ours == theirs for ours, theirs in zip(timed.captions[variant], timed.captions[TEXTBOOK], strict=True))


def figures(case: Case, timed: Timed, no_bf16: str) -> Iterator[Figure]:
    for variant in case.variants:
        name, goal = f"{case.name}, {variant.partition(', ')[2]}", case.speed_up.get(variant)
        if variant not in timed.seconds:
            yield Figure(f"{name}: speed-up over textbook", None, goal=goal, note=no_bf16)
            continue
        if variant != TEXTBOOK:
            speed_up = timed.seconds[TEXTBOOK] / timed.seconds[variant]
            yield Figure(f"{name}: speed-up over textbook", speed_up, goal=goal)
        yield Figure(f"{case.name}, {variant}", 1 / timed.seconds[variant], "images/s")
    yield Figure(f"{case.name}, 50 images: time / lower bound", timed.seconds[MANY] / timed.lower_bound, better="lower")
    equal = 100 * min(equal_captions(timed, name) for name in timed.captions if name != BF16) / IMAGES[MANY]
    yield Figure(f"{case.name}: captions equal to the textbook's", equal, "%", goal=100 if case.speed_up else None)


def make_table(case: Case, timed: Timed) -> Table:
    lengths = torch.tensor([len(tokens) for tokens in timed.captions[MANY]], dtype=torch.float)
    words = f"{lengths.mean():.1f} words, standard deviation {lengths.std():.1f}"
    table = Table("", title=f"{case.name}: {words}; {count(timed.rounds, 'round')}", title_justify="left")
    for column in ("images/s", "speed-up", "/ lower bound", "equal captions"):
        table.add_column(column, justify="right")
    for name, seconds in timed.seconds.items():
        bound = f"{seconds / timed.lower_bound:.2f}" if name == MANY else ""
        equal = f"{equal_captions(timed, name)} of {IMAGES[MANY]}"
        table.add_row(name, f"{1 / seconds:.1f}", f"{timed.seconds[TEXTBOOK] / seconds:.1f}", bound, equal)
    table.add_row("lower bound", f"{1 / timed.lower_bound:.1f}")
    return table


if __name__ == "__main__":
    main(measure)
