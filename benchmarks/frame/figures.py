"""What a script measured, as numbers: each against its goal, and against an earlier run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from rich.table import Table

STEADY = {"times", "MB", "%", "levels"}
"""Units of figures that other work on the machine hardly moves."""

TOLERANCE = 0.1
"""The share by which a figure may differ from an earlier run's and still counts as the same."""


@dataclass(frozen=True)
class Figure:
    """A number that a script measured, or the reason why it could not be.

    Args:
        name: what was measured, in words that stay the same from run to run.
        value: the number, None where it cannot be measured here.
        unit: `times` of a ratio of two measurements in one run, `MB`, `%`, `levels`; or `ms`, `images/s` and the like.
        better: which direction is.
        goal: the least value, or the most where lower is better; None: it has none.
        note: why there is no value.
    """

    name: str
    value: float | None
    unit: str = "times"
    better: Literal["higher", "lower"] = "higher"
    goal: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.note:
            raise ValueError(f"the figure '{self.name}' has neither a value nor a note that says why")


class Change(NamedTuple):
    """A figure of two runs; `gain` is how many times as good the second is."""

    before: Figure
    now: Figure
    gain: float


def changes(before: Iterable[Figure], now: Sequence[Figure]) -> list[Change]:
    """The figures that both runs have, by name; of a script with steady figures only those, since the rest is as much
    the machine's doing."""
    earlier = {figure.name: figure for figure in before}
    steady = [figure for figure in now if figure.unit in STEADY]
    pairs = [(earlier[figure.name], figure) for figure in steady or now if figure.name in earlier]
    return [Change(old, new, gain(old, new)) for old, new in pairs if old.value is not None and new.value is not None]


def gain(before: Figure, now: Figure) -> float:
    """How many times as good: 2 is twice the rate, or half the time."""
    assert before.value is not None
    assert now.value is not None
    upper, lower = (now.value, before.value) if now.better == "higher" else (before.value, now.value)
    if upper == lower:
        return 1.0
    return upper / lower if lower else math.inf


def worse(found: Iterable[Change]) -> list[Change]:
    return [change for change in found if change.gain < 1 - TOLERANCE]


def better(found: Iterable[Change]) -> list[Change]:
    return [change for change in found if change.gain > 1 + TOLERANCE]


def verdict(figure: Figure) -> str:
    """`reached`, by how many percent it was missed, or why it was not measured."""
    if figure.value is None:
        return f"not measured: {figure.note}"
    assert figure.goal is not None
    short = figure.goal - figure.value if figure.better == "higher" else figure.value - figure.goal
    if short <= 0:
        return "reached"
    return f"missed by {100 * short / figure.goal:.0f} %" if figure.goal else "missed"


def in_unit(figure: Figure) -> str:
    """The value as it is read: `4.52`, `61.3 MB`; "" where there is none."""
    if figure.value is None:
        return ""
    return number(figure.value) if figure.unit == "times" else f"{number(figure.value)} {figure.unit}"


def number(value: float) -> str:
    """Three digits of it, and all in front of the point."""
    if not value:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, min(digits, 4))}f}"


def goal_table(figures: Iterable[tuple[str, Figure]]) -> Table:
    """The figures that have a goal, each with the name of its script."""
    table = Table()
    table.add_column("goals", no_wrap=True)
    table.add_column("goal", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("", min_width=len("missed by 99 %"))
    for script, rows in groupby(figures, key=itemgetter(0)):
        with_goal = [figure for _, figure in rows if figure.goal is not None]
        if with_goal:
            table.add_section()
            table.add_row(f"[bold]{script}[/]")
        for figure in with_goal:
            judged = verdict(figure)
            style = {"reached": "green", "missed": "bold red"}.get(judged.split()[0], "yellow")
            wanted = f"{'≥' if figure.better == 'higher' else '≤'} {figure.goal:,g}"
            table.add_row(f"  {figure.name}", wanted, in_unit(figure), judged, style=style)
    return table
