"""Measured numbers, compared with their goals and with an earlier run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from rich.table import Table

LOAD_INDEPENDENT = {"times", "MB", "%", "levels"}
"""Units of figures that hardly depend on the load of the machine."""

TOLERANCE = 0.1
"""The relative difference up to which two runs count as equal."""


@dataclass(frozen=True)
class Figure:
    """A measured number.

    Args:
        name: the measured quantity; runs are compared by it.
        value: None if it was not measured.
        unit: `times` for a ratio within one run, or `MB`, `%`, `levels`, `ms`, `images/s`, ...
        better: the direction of improvement.
        goal: the minimum, or the maximum if lower is better.
        note: the reason why there is no value.
    """

    name: str
    value: float | None
    unit: str = "times"
    better: Literal["higher", "lower"] = "higher"
    goal: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.note:
            raise ValueError(f"the figure '{self.name}' needs a value, or a note with the reason why it has none")


class Change(NamedTuple):
    """A figure of two runs; a `gain` of 2 is twice the rate or half the time."""

    before: Figure
    now: Figure
    gain: float


def changes(before: Iterable[Figure], now: Sequence[Figure]) -> list[Change]:
    """Compare the figures that both runs have; only the load-independent ones if the script has any."""
    earlier = {figure.name: figure for figure in before}
    comparable = [figure for figure in now if figure.unit in LOAD_INDEPENDENT]
    pairs = [(earlier[figure.name], figure) for figure in comparable or now if figure.name in earlier]
    return [Change(old, new, gain(old, new)) for old, new in pairs if old.value is not None and new.value is not None]


def gain(before: Figure, now: Figure) -> float:
    """Return the factor of improvement."""
    assert before.value is not None
    assert now.value is not None
    upper, lower = (now.value, before.value) if now.better == "higher" else (before.value, now.value)
    if upper == lower:
        return 1.0
    return upper / lower if lower else math.inf


def regressions(found: Iterable[Change]) -> list[Change]:
    return [change for change in found if change.gain < 1 - TOLERANCE]


def improvements(found: Iterable[Change]) -> list[Change]:
    return [change for change in found if change.gain > 1 + TOLERANCE]


def verdict(figure: Figure) -> str:
    """Return `reached`, `missed by N %`, or the reason why a figure with a goal was not measured."""
    if figure.value is None:
        return f"not measured: {figure.note}"
    assert figure.goal is not None
    missing = figure.goal - figure.value if figure.better == "higher" else figure.value - figure.goal
    if missing <= 0:
        return "reached"
    return f"missed by {100 * missing / figure.goal:.0f} %" if figure.goal else "missed"


def format_value(figure: Figure) -> str:
    """Return the value with its unit, such as `4.52` or `61.3 MB`; "" if there is none."""
    if figure.value is None:
        return ""
    return format_number(figure.value) if figure.unit == "times" else f"{format_number(figure.value)} {figure.unit}"


def format_number(value: float) -> str:
    """Return the number with three significant digits, or with all digits before the decimal point."""
    if not value:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, min(digits, 4))}f}"


def figure_table(figures: Iterable[Figure]) -> Table:
    table = Table("", "measured")
    for figure in figures:
        table.add_row(figure.name, format_value(figure) or f"not measured: {figure.note}")
    return table


def goal_table(figures: Iterable[tuple[str, Figure]]) -> Table:
    """Return a table of the figures that have a goal, by script."""
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
            result = verdict(figure)
            style = {"reached": "green", "missed": "bold red"}.get(result.split()[0], "yellow")
            goal = f"{'≥' if figure.better == 'higher' else '≤'} {figure.goal:,g}"
            table.add_row(f"  {figure.name}", goal, format_value(figure), result, style=style)
    return table
