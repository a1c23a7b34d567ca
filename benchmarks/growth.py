"""How time and memory of a training step grow with captions, vocabulary, batch and grid.

Each table has the step of `python -m benchmarks.training_step` at several sizes. `a doubling` is what the time is
multiplied by where the size doubles, as from the row above: 2 is growth in proportion. The textbook's time is that of
one step, at the sizes where that is short.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.table import Table

from benchmarks.frame.figures import Figure
from benchmarks.frame.memory import can_measure
from benchmarks.frame.script import Measured, main
from benchmarks.frame.timing import PROPORTION, a_doubling, interleave, medians
from benchmarks.learning import OURS, TEXTBOOK, WAYS, Learner, peaks
from benchmarks.workload import Work

TURNS = 2


class Axis(NamedTuple):
    """Works that differ in one size, ascending, and how many of them the textbook does, too; `more` describes them."""

    name: str
    more: str
    sizes: Sequence[int]
    work: Callable[[int], Work]
    textbook: int


AXES = (
    Axis("captions", ", five an image", (65, 130, 260), lambda size: Work(images=size // 5), 2),
    Axis("words", " of the vocabulary", (1_000, 5_000, 10_000, 20_000, 40_000), lambda size: Work(vocabulary=size), 3),
    Axis("images", ", a caption each", (16, 64, 256), lambda size: Work(images=size, each=1, mixed=False), 2),
    Axis("regions", " of an image", (49, 196, 400, 784), lambda size: Work(regions=size), 2),
)


class Grown(NamedTuple):
    """Of a size: the seconds of our step, its MB over what stays (None where that is not measured), and the seconds of
    the textbook's step (None where it was left out)."""

    size: int
    seconds: float
    memory: float | None
    textbook: float | None


def measure(options: Namespace) -> Measured:
    works = unique(axis.work(size) for axis in AXES for size in axis.sizes)
    seconds = {work: time_step(work) for work in works}
    memory = dict(zip(works, peaks(OURS, works, options.threads), strict=True)) if can_measure() else {}
    short = unique(axis.work(size) for axis in AXES for size in axis.sizes[: axis.textbook])
    textbook = {work: time_textbook(work) for work in short}
    found = {
        axis: [
            Grown(size, seconds[work], memory.get(work), textbook.get(work))
            for size, work in zip(axis.sizes, map(axis.work, axis.sizes), strict=True)
        ]
        for axis in AXES
    }
    return Measured(
        [make_table(axis, rows) for axis, rows in found.items()],
        [figure for axis, rows in found.items() for figure in figures(axis, rows)],
    )


def unique(works: Iterable[Work]) -> list[Work]:
    """Each once, in their order."""
    return list(dict.fromkeys(works))


def time_step(work: Work) -> float:
    learner = Learner(WAYS[OURS], work, work.batch())
    return medians(interleave({OURS: learner.step}, seconds=0, least=TURNS))[OURS]


def time_textbook(work: Work) -> float:
    learner = Learner(WAYS[TEXTBOOK], work, work.batch())
    started = time.perf_counter()
    learner.step()
    return time.perf_counter() - started


def make_table(axis: Axis, rows: Sequence[Grown]) -> Table:
    table = Table(title=f"a training step by {axis.name}{axis.more}", title_justify="left")
    for column in (axis.name, "ms", "a doubling", "peak MB", "textbook, ms", "times as fast"):
        table.add_column(column, justify="right")
    for before, (size, seconds, memory, textbook) in zip([None, *rows], rows, strict=False):
        factor = f"x {a_doubling((before.size, size), (before.seconds, seconds)):.2f}" if before else ""
        peak = "" if memory is None else f"{memory:.0f}"
        beside = [f"{1000 * textbook:.0f}", f"{textbook / seconds:.1f}"] if textbook else []
        table.add_row(f"{size:,}", f"{1000 * seconds:.0f}", factor, peak, *beside)
    return table


def figures(axis: Axis, rows: Sequence[Grown]) -> Iterator[Figure]:
    """What a doubling costs from the smallest size to the largest, and the largest itself."""
    last = rows[-1]
    factor = a_doubling([row.size for row in rows], [row.seconds for row in rows])
    yield Figure(f"{axis.name} doubled: a step's time", factor, better="lower", goal=PROPORTION)
    yield Figure(f"{axis.name}, {last.size:,}: a step", 1000 * last.seconds, "ms", "lower")
    if last.memory is not None:
        yield Figure(f"{axis.name}, {last.size:,}: peak memory", last.memory, "MB", "lower")


if __name__ == "__main__":
    main(measure)
