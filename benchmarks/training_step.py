"""A training step of the decoder on stored grids, compared with the textbook's and with a lower bound.

A step is the loss, its gradients, their clipping and the optimiser's move; the paper's soft attention, no dropout.

textbook  the same model and loss as the popular ports compute them: every projection at every step and caption
ours      the package's own way, in single precision; also where nothing can be compiled, and under bf16 autocast
floor     the floating-point operations of the step's matrix products, over the rate of such products in the same run

Ways take turns; milliseconds are medians of the turns. The distance is the largest relative difference between a step's
loss and the textbook's. Peak memory is what a step adds to parameters, gradients, the optimiser's state and grids, each
way in a process of its own.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from rich.table import Table

from benchmarks.floor import MatrixRate, operations
from benchmarks.frame.figures import Figure
from benchmarks.frame.machine import count, this_machine
from benchmarks.frame.memory import can_measure
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import interleave, medians
from benchmarks.learning import HALF, OURS, PLAIN, TEXTBOOK, WAYS, Learner, peaks
from benchmarks.workload import Work
from showattendtell.runtime.memory import keep_freed_memory

AGREEMENT = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""How far the loss of any step may be from the textbook's, relatively, by the precision of the products."""

FASTER = 1.3
"""bf16 is measured where its products are so many times as fast."""


class Case(NamedTuple):
    """A batch and the ways that do it.

    seconds  to give it
    least    turns
    faster   goals: at least so many times as fast as the textbook, by way
    floor    goals: at most so many times the floor, by the number of threads
    smaller  a goal: at least so many times less memory than the textbook; None: memory is not measured
    """

    name: str
    work: Work
    ways: Sequence[str]
    seconds: float
    least: int = 3
    faster: Mapping[str, float] = {}
    floor: Mapping[int, float] = {}
    smaller: float | None = None


MIXED, EQUAL = Work(), Work(images=64, each=1, mixed=False)
CASES = (
    Case("13 x 5 mixed", MIXED, list(WAYS), 22, 3, {OURS: 4.5, PLAIN: 3.6, HALF: 7.5}, {1: 1.6, 2: 1.8}, smaller=6),
    Case("64 x 1 equal", EQUAL, list(WAYS), 17, 3, {OURS: 3}, smaller=6),
    Case("13 x 5 mixed, n 1000", MIXED._replace(hidden=1000), [TEXTBOOK, OURS, HALF], 12, 2),
    Case("64 x 1 equal, n 1000", EQUAL._replace(hidden=1000), [TEXTBOOK, OURS, HALF], 12, 2),
)
TWO_THREADS = Case("13 x 5 mixed, 2 threads", MIXED, [TEXTBOOK, OURS], 8, 3, floor={2: 1.8})


class Timed(NamedTuple):
    """What was measured of a case: of each way the median of its seconds and the distance of its losses from the
    textbook's; of each precision the floor's seconds; how many turns."""

    seconds: dict[str, float]
    distance: dict[str, float]
    floor: dict[torch.dtype, float]
    turns: int


def measure(options: Namespace) -> Measured:
    keep_freed_memory()  # as `train` does; the textbook's steps gain as well
    rates = matrix_rates(MIXED)
    factor = rates[torch.bfloat16] / rates[torch.float32]
    halves = factor > FASTER
    missing = "" if halves else f"bf16 products are {factor:.1f} x as fast as fp32's"
    memory = measure_memory(options.threads, halves)
    parts = [measure_case(case, options.threads, memory, missing) for case in CASES]
    if options.threads == 1 and this_machine().cores > 1:
        torch.set_num_threads(2)
        parts.append(measure_case(TWO_THREADS, 2, {}, missing))
        torch.set_num_threads(1)
    notes = [note for part in parts for note in part.notes]
    if missing:
        notes.append(f"bf16 is not measured: here {missing}")
    if not memory:
        notes.append("peak memory is not measured: that takes Linux's /proc")
    return Measured(
        [table for part in parts for table in part.tables], [figure for part in parts for figure in part.figures], notes
    )


def matrix_rates(work: Work) -> dict[torch.dtype, float]:
    """Operations a second by precision."""
    rates = {dtype: MatrixRate(work, dtype) for dtype in AGREEMENT}
    interleave({str(dtype): rate for dtype, rate in rates.items()}, seconds=1.5)
    return {dtype: rate.best for dtype, rate in rates.items()}


def usable(ways: Sequence[str], halves: bool) -> list[str]:
    return [way for way in ways if halves or WAYS[way].dtype == torch.float32]


def measure_memory(threads: int, halves: bool) -> dict[tuple[str, Work], float]:
    """MB by way and work; nothing where that cannot be measured."""
    if not can_measure():
        return {}
    works = [case.work for case in CASES if case.smaller]
    found = {way: peaks(way, works, threads) for way in usable(list(WAYS), halves)}
    return {(way, work): peak for way, taken in found.items() for work, peak in zip(works, taken, strict=True)}


def measure_case(case: Case, threads: int, memory: dict[tuple[str, Work], float], missing: str) -> Measured:
    timed = time_case(case, usable(case.ways, not missing))
    known = {way: memory[way, case.work] for way in timed.seconds if (way, case.work) in memory and case.smaller}
    far = [way for way, distance in timed.distance.items() if distance > AGREEMENT[WAYS[way].dtype]]
    notes = [f"[bold red]{case.name}: the losses of {way} are not the textbook's[/]" for way in far]
    return Measured([make_table(case, timed, known)], list(figures(case, threads, timed, known, missing)), notes)


def time_case(case: Case, ways: Sequence[str]) -> Timed:
    batch = case.work.batch()
    learners = {way: Learner(WAYS[way], case.work, batch) for way in ways}
    rates = {dtype: MatrixRate(case.work, dtype) for dtype in {WAYS[way].dtype for way in ways}}
    turns: dict[str, Callable[[], None]] = {way: learner.step for way, learner in learners.items()}
    turns |= {str(dtype): rate for dtype, rate in rates.items()}
    times = interleave(turns, case.seconds, case.least)
    expected = learners[TEXTBOOK].losses
    return Timed(
        medians({way: times[way] for way in ways}),
        {way: largest_distance(learner.losses, expected) for way, learner in learners.items()},
        {dtype: operations(case.work) / rate.best for dtype, rate in rates.items()},
        len(times[TEXTBOOK]),
    )


def largest_distance(losses: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(loss / other - 1) for loss, other in zip(losses, expected, strict=True))


def figures(case: Case, threads: int, timed: Timed, memory: dict[str, float], missing: str) -> Iterator[Figure]:
    for way in case.ways:
        if way != TEXTBOOK and way not in timed.seconds:
            yield Figure(f"{said(case, way)}: speed / textbook's", None, goal=case.faster.get(way), note=missing)
        elif way != TEXTBOOK:
            yield from speeds(case, way, threads, timed)
    yield Figure(f"{case.name}: the textbook's step", 1000 * timed.seconds[TEXTBOOK], "ms", "lower")
    if case.smaller is not None:
        yield from sizes(case, memory)


def said(case: Case, way: str) -> str:
    """The case, and the way where it is not the package's usual one."""
    return ", ".join([case.name, *way.split(", ")[1:]])


def speeds(case: Case, way: str, threads: int, timed: Timed) -> Iterator[Figure]:
    name, seconds = said(case, way), timed.seconds[way]
    yield Figure(f"{name}: speed / textbook's", timed.seconds[TEXTBOOK] / seconds, goal=case.faster.get(way))
    times_floor, goal = seconds / timed.floor[WAYS[way].dtype], case.floor.get(threads) if way == OURS else None
    yield Figure(f"{name}: time / floor", times_floor, better="lower", goal=goal)
    yield Figure(f"{name}: a step", 1000 * seconds, "ms", "lower")


def sizes(case: Case, memory: dict[str, float]) -> Iterator[Figure]:
    less = memory[TEXTBOOK] / memory[OURS] if memory else None
    yield Figure(f"{case.name}: textbook's peak memory / ours", less, goal=case.smaller, note="no /proc")
    for way, peak in memory.items():
        yield Figure(f"{case.name}, {way}: peak memory", peak, "MB", "lower")


def make_table(case: Case, timed: Timed, memory: dict[str, float]) -> Table:
    work = case.work
    giga, turns = operations(work) / 1e9, count(timed.turns, "turn")
    title = f"{case.name}: {sum(work.lengths)} words, {giga:.0f} GFLOP of matrix products, {turns}"
    table = Table("", title=title, title_justify="left")
    for column in ("ms", "times as fast", "times the floor", "loss, distance", "peak MB"):
        table.add_column(column, justify="right")
    for way, seconds in timed.seconds.items():
        faster = f"{timed.seconds[TEXTBOOK] / seconds:.2f}"
        times_floor = f"{seconds / timed.floor[WAYS[way].dtype]:.2f}"
        distance = f"{timed.distance[way]:.0e}" if timed.distance[way] else ""
        peak = f"{memory[way]:.0f}" if memory else ""
        table.add_row(way, f"{1000 * seconds:.0f}", faster, times_floor, distance, peak)
    for dtype, seconds in timed.floor.items():
        precision = "fp32" if dtype == torch.float32 else "bf16"
        table.add_row(f"floor, {precision}, {giga / seconds:.0f} GFLOP/s", f"{1000 * seconds:.0f}")
    return table


if __name__ == "__main__":
    main(measure)
