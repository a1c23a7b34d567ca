"""Charts for HTML pages, which the template `chart.html` draws as SVG. Places are in percent of the plot's width and
height, from its lower left corner."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

MARGIN = 4.0
"""Empty space at both ends of an axis, in percent of its length."""

NUM_TICKS = 5

Place = tuple[float, float]


class Axis(NamedTuple):
    """An axis from `low` to `high`; with `names`, their positions 0, 1, ... are categories."""

    label: str
    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        ends = np.array([self.low, self.high])
        low, high = np.log10(ends) if self.log else ends
        share = ((np.log10(value) if self.log else value) - low) / (high - low)
        return round(float(MARGIN + (100 - 2 * MARGIN) * share), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The place and the label of each tick."""
        if self.names:
            return [(self.place(number), name) for number, name in enumerate(self.names)]
        if self.log:
            values = LogLocator(subs=(1, 2, 5) if self.high < 100 * self.low else (1,)).tick_values(self.low, self.high)
        else:
            values = MaxNLocator(NUM_TICKS, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
        return [(self.place(value), f"{value:.4g}") for value in values if self.low <= value <= self.high]


class Mark(NamedTuple):
    """A point, or a line through several places; `kind` is its style, and `text` is shown on hover."""

    kind: str
    places: Sequence[Place]
    text: str = ""


class Chart(NamedTuple):
    """Marks over two axes; `legend` has the labels of their kinds."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    legend: Mapping[str, str] = {}


def axis_over(label: str, values: Sequence[float], log: bool = False) -> Axis:
    """Return an axis from the lowest to the highest value, or around the value if all are equal."""
    low, high = min(values), max(values)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    return Axis(label, low, high, log)


def category_axis(label: str, names: Sequence[str]) -> Axis:
    return Axis(label, -0.5, len(names) - 0.5, names=tuple(names))
