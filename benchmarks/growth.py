"""Growth of a training step's time and memory with captions, vocabulary, batch and grid.

The step is that of `python -m benchmarks.training_step`. `growth` is the factor by which the time grows if the size
doubles, computed from the previous row: 2 is proportional growth. The textbook's time is from one step.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.table import Table

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import PROPORTIONAL, growth_factor, interleave, medians, seconds_of
from benchmarks.implementations import OURS, TEXTBOOK, make_step, peak_memory
from benchmarks.workload import Workload

ROUNDS = 2


class Axis(NamedTuple):
    """Workloads that differ in one size, smallest first; the textbook runs the first `textbook` of them."""

    name: str
    description: str
    sizes: Sequence[int]
    workload: Callable[[int], Workload]
    textbook: int

    @property
    def workloads(self) -> list[Workload]:
        return [self.workload(size) for size in self.sizes]


WORDS = (1_000, 5_000, 10_000, 20_000, 40_000)
AXES = (
    Axis("captions", ", five per image", (65, 130, 260), lambda size: Workload(images=size // 5), 1),
    Axis("words", " in the vocabulary", WORDS, lambda size: Workload(vocabulary=size), 3),
    Axis("images", ", one caption each", (16, 64, 256), lambda size: Workload(size, 1, mixed_lengths=False), 1),
    Axis("regions", " per image", (49, 196, 400, 784), lambda size: Workload(regions=size), 2),
)


class Row(NamedTuple):
    """Seconds of our step, its peak memory in MB and the seconds of the textbook's step; None if not measured."""

    size: int
    seconds: float
    memory: float | None
    textbook: float | None


def measure(options: Namespace) -> Results:
    workloads = unique(workload for axis in AXES for workload in axis.workloads)
    small = unique(workload for axis in AXES for workload in axis.workloads[: axis.textbook])
    seconds = {workload: time_step(OURS, workload) for workload in workloads}
    textbook = {workload: time_step(TEXTBOOK, workload) for workload in small}
    memory = peak_memory([OURS], workloads, options.threads)
    rows = {
        axis: [
            Row(size, seconds[workload], memory.get((OURS, workload)), textbook.get(workload))
            for size, workload in zip(axis.sizes, axis.workloads, strict=True)
        ]
        for axis in AXES
    }
    return Results(
        [make_table(axis, of_axis) for axis, of_axis in rows.items()],
        [figure for axis, of_axis in rows.items() for figure in figures(axis, of_axis)],
    )


def unique(workloads: Iterable[Workload]) -> list[Workload]:
    return list(dict.fromkeys(workloads))


def time_step(name: str, workload: Workload) -> float:
    """Return the seconds of a step; the textbook, which is slow and compiles nothing, runs once without a warm-up."""
    step = make_step(name, workload)
    if name == TEXTBOOK:
        return seconds_of(step)
    return medians(interleave({name: step}, seconds=0, min_rounds=ROUNDS))[name]


def make_table(axis: Axis, rows: Sequence[Row]) -> Table:
    table = Table(title=f"training step by {axis.name}{axis.description}", title_justify="left")
    for column in (axis.name, "ms", "growth", "peak MB", "textbook, ms", "speed-up"):
        table.add_column(column, justify="right")
    for before, (size, seconds, memory, textbook) in zip([None, *rows], rows, strict=False):
        growth = f"x {growth_factor((before.size, size), (before.seconds, seconds)):.2f}" if before else ""
        peak = "" if memory is None else f"{memory:.0f}"
        baseline = [f"{1000 * textbook:.0f}", f"{textbook / seconds:.1f}"] if textbook else []
        table.add_row(f"{size:,}", f"{1000 * seconds:.0f}", growth, peak, *baseline)
    return table


def figures(axis: Axis, rows: Sequence[Row]) -> Iterator[Figure]:
    """Growth from the smallest to the largest size, and time and memory of the largest."""
    last = rows[-1]
    growth = growth_factor([row.size for row in rows], [row.seconds for row in rows])
    yield Figure(f"step time with twice the {axis.name}", growth, better="lower", goal=PROPORTIONAL)
    yield Figure(f"{axis.name}, {last.size:,}: step", 1000 * last.seconds, "ms", "lower")
    if last.memory is not None:
        yield Figure(f"{axis.name}, {last.size:,}: peak memory", last.memory, "MB", "lower")


if __name__ == "__main__":
    main(measure)
