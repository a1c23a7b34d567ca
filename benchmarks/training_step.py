"""Training step of the decoder on stored features, compared with a textbook implementation and a lower bound.

A step computes the loss of soft attention without dropout, its gradients, gradient clipping and the optimizer step.

textbook     the same model and loss as in popular ports: every projection at every step of every caption
ours         the package in float32, and under bfloat16 autocast
lower bound  floating-point operations of the step's matrix products, divided by the rate of such products

Implementations take turns, and times are medians over the rounds. The loss difference is the largest relative
difference from the textbook's loss at any step. Peak memory excludes parameters, gradients, optimizer state and
features, and is measured in another process.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from rich.table import Table

from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import count, this_machine
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.implementations import BF16, IMPLEMENTATIONS, OURS, TEXTBOOK, Peaks, Trainer, peak_memory
from benchmarks.lower_bound import MatrixRate, operations
from benchmarks.workload import Workload
from showattendtell.runtime.process import keep_freed_memory

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest relative difference from the textbook's loss, by precision of the products."""

MIN_BF16_GAIN = 1.3
"""bfloat16 is measured if its products are at least this many times as fast as float32's."""


class Case(NamedTuple):
    """A batch, and the implementations to measure.

    seconds      time budget
    min_rounds   minimum number of rounds
    speed_up     goals: minimum speed-up over the textbook, by implementation
    lower_bound  goals: maximum multiple of the lower bound, by number of threads
    memory       goal: minimum ratio of the textbook's peak memory to ours; None: memory is not measured
    """

    name: str
    workload: Workload
    implementations: Sequence[str]
    seconds: float
    min_rounds: int = 3
    speed_up: Mapping[str, float] = {}
    lower_bound: Mapping[int, float] = {}
    memory: float | None = None


MIXED, EQUAL = Workload(), Workload(images=64, captions_per_image=1, mixed_lengths=False)
ALL, SOME = list(IMPLEMENTATIONS), [TEXTBOOK, OURS, BF16]
CASES = (
    Case("13 x 5 mixed", MIXED, ALL, 18, 3, {OURS: 4.5, BF16: 7.5}, {1: 1.6, 2: 1.8}, memory=6),
    Case("64 x 1 equal", EQUAL, ALL, 17, 3, {OURS: 3}, memory=6),
    Case("13 x 5 mixed, n 1000", MIXED._replace(hidden=1000), SOME, 10, 1),
    Case("64 x 1 equal, n 1000", EQUAL._replace(hidden=1000), SOME, 10, 1),
)
TWO_THREADS = Case("13 x 5 mixed, 2 threads", MIXED, [TEXTBOOK, OURS], 8, 3, lower_bound={2: 1.8})


class Timed(NamedTuple):
    """Times of a case: seconds and loss difference by implementation, lower bound in seconds by precision, and the
    number of rounds."""

    seconds: dict[str, float]
    difference: dict[str, float]
    lower_bound: dict[torch.dtype, float]
    rounds: int


def measure(options: Namespace) -> Results:
    keep_freed_memory()  # as `train` does; it speeds up the textbook as well
    no_bf16 = reason_against_bf16(MIXED)
    in_memory = [case.workload for case in CASES if case.memory]
    memory = peak_memory(usable(ALL, no_bf16), in_memory, options.threads)
    parts = [measure_case(case, options.threads, memory, no_bf16) for case in CASES]
    if options.threads == 1 and this_machine().cores > 1:
        torch.set_num_threads(2)
        parts.append(measure_case(TWO_THREADS, 2, {}, no_bf16))
        torch.set_num_threads(1)
    results = joined(parts, no_bf16)
    return results if memory else results._replace(notes=[*results.notes, "no peak memory: it needs Linux's /proc"])


def joined(parts: Sequence[Results], no_bf16: str) -> Results:
    tables = [table for part in parts for table in part.tables]
    notes = [note for part in parts for note in part.notes]
    notes += [f"bfloat16 is not measured: {no_bf16}"] if no_bf16 else []
    return Results(tables, [figure for part in parts for figure in part.figures], notes)


def reason_against_bf16(workload: Workload) -> str:
    """Return why bfloat16 is not measured on this machine; "" if it is."""
    rates = {dtype: MatrixRate(workload, dtype) for dtype in TOLERANCE}
    interleave({str(dtype): rate for dtype, rate in rates.items()}, seconds=1.5)
    gain = rates[torch.bfloat16].best / rates[torch.float32].best
    return "" if gain > MIN_BF16_GAIN else f"its products are {gain:.1f} times as fast as float32's"


def usable(names: Sequence[str], no_bf16: str) -> list[str]:
    return [name for name in names if not no_bf16 or name != BF16]


def measure_case(case: Case, threads: int, memory: Peaks, no_bf16: str) -> Results:
    timed = time_case(case, usable(case.implementations, no_bf16))
    peaks = {name: memory[name, case.workload] for name in timed.seconds if memory and case.memory}
    wrong = [name for name, value in timed.difference.items() if value > TOLERANCE[IMPLEMENTATIONS[name].dtype]]
    notes = [f"[bold red]{case.name}: the losses of {name} differ from the textbook's[/]" for name in wrong]
    return Results([make_table(case, timed, peaks)], list(figures(case, threads, timed, peaks, no_bf16)), notes)


def time_case(case: Case, names: Sequence[str]) -> Timed:
    batch = case.workload.batch()
    trainers = {name: Trainer(IMPLEMENTATIONS[name], case.workload.captioner()) for name in names}
    rates = {dtype: MatrixRate(case.workload, dtype) for dtype in {IMPLEMENTATIONS[name].dtype for name in names}}
    variants: dict[str, Callable[[], None]] = {str(dtype): rate for dtype, rate in rates.items()}
    variants |= {name: partial(trainer.step, *batch) for name, trainer in trainers.items()}
    times = interleave(variants, case.seconds, case.min_rounds)
    expected = trainers[TEXTBOOK].losses
    return Timed(
        medians({name: times[name] for name in names}),
        {name: largest_difference(trainer.losses, expected) for name, trainer in trainers.items()},
        {dtype: operations(case.workload) / rate.best for dtype, rate in rates.items()},
        len(times[TEXTBOOK]),
    )


def largest_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(loss / other - 1) for loss, other in zip(losses, expected, strict=True))


def figures(case: Case, threads: int, timed: Timed, memory: dict[str, float], no_bf16: str) -> Iterator[Figure]:
    for implementation in case.implementations:
        name, goal = ", ".join([case.name, *implementation.split(", ")[1:]]), case.speed_up.get(implementation)
        if implementation == TEXTBOOK:
            yield Figure(f"{case.name}: textbook step", 1000 * timed.seconds[TEXTBOOK], "ms", "lower")
        elif implementation not in timed.seconds:
            yield Figure(f"{name}: speed-up over textbook", None, goal=goal, note=no_bf16)
        else:
            seconds, bound = timed.seconds[implementation], timed.lower_bound[IMPLEMENTATIONS[implementation].dtype]
            yield Figure(f"{name}: speed-up over textbook", timed.seconds[TEXTBOOK] / seconds, goal=goal)
            goal = case.lower_bound.get(threads) if implementation == OURS else None
            yield Figure(f"{name}: time / lower bound", seconds / bound, better="lower", goal=goal)
            yield Figure(f"{name}: step", 1000 * seconds, "ms", "lower")
    if case.memory is not None:
        ratio = memory[TEXTBOOK] / memory[OURS] if memory else None
        yield Figure(f"{case.name}: textbook's peak memory / ours", ratio, goal=case.memory, note="no /proc")
        for implementation, peak in memory.items():
            yield Figure(f"{case.name}, {implementation}: peak memory", peak, "MB", "lower")


def make_table(case: Case, timed: Timed, memory: dict[str, float]) -> Table:
    giga, rounds = operations(case.workload) / 1e9, count(timed.rounds, "round")
    title = f"{case.name}: {sum(case.workload.lengths)} words, {giga:.0f} GFLOP of matrix products, {rounds}"
    table = Table("", title=title, title_justify="left")
    for column in ("ms", "speed-up", "/ lower bound", "loss difference", "peak MB"):
        table.add_column(column, justify="right")
    for name, seconds in timed.seconds.items():
        speed_up = f"{timed.seconds[TEXTBOOK] / seconds:.2f}"
        bound = f"{seconds / timed.lower_bound[IMPLEMENTATIONS[name].dtype]:.2f}"
        difference = f"{timed.difference[name]:.0e}" if timed.difference[name] else ""
        peak = f"{memory[name]:.0f}" if memory else ""
        table.add_row(name, f"{1000 * seconds:.0f}", speed_up, bound, difference, peak)
    for dtype, seconds in timed.lower_bound.items():
        precision = "float32" if dtype == torch.float32 else "bf16"
        table.add_row(f"lower bound, {precision}, {giga / seconds:.0f} GFLOP/s", f"{1000 * seconds:.0f}")
    return table


if __name__ == "__main__":
    main(measure)
