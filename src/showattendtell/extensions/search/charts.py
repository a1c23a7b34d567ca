"""Charts for HTML pages, which the template `chart.html` draws as SVG. Places are in percent of the plot's width and
height, from its lower left corner."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

MARGIN = 4.0
"""Empty space at both ends of an axis, in percent of its length."""

NUM_TICKS = 5

NEARLY_ZERO = 1e-6
"""An axis begins at 0 if its lowest value is less than this fraction of the highest."""

Place = tuple[float, float]


class Axis(NamedTuple):
    """An axis from `low` to `high`; with `names`, their positions 0, 1, ... are categories.

    Ticks are at the values `marked` or else at round numbers, which are integers if `integer`.
    """

    label: str
    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()
    marked: tuple[float, ...] = ()
    integer: bool = False

    def position(self, value: float) -> float:
        limits = np.array([self.low, self.high])
        low, high = np.log10(limits) if self.log else limits
        fraction = ((np.log10(value) if self.log else value) - low) / (high - low)
        return round(float(MARGIN + (100 - 2 * MARGIN) * fraction), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The place and the label of each tick."""
        if self.names:
            return [(self.position(i), name) for i, name in enumerate(self.names)]
        return [(self.position(value), f"{value:.4g}") for value in self.marked or self._round_numbers()]

    def _round_numbers(self) -> list[float]:
        if not self.log:
            locator = MaxNLocator(NUM_TICKS, steps=[1, 2, 5, 10], integer=self.integer)
            return self._within(locator.tick_values(self.low, self.high))
        steps = ((1, 2, 5), (1, 3), (1,))
        candidates = [self._within(LogLocator(subs=subs).tick_values(self.low, self.high)) for subs in steps]
        return next((values for values in candidates if len(values) < NUM_TICKS), candidates[-1])

    def _within(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in values if self.low <= value <= self.high]


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
    """Return an axis from the lowest to the highest value, or around the value if all are equal.

    A few integers have a tick each. Of more integers, ticks are at integers.
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    if not log and 0 < low < NEARLY_ZERO * high:
        low = 0.0  # BLEU-4 without a single match
    is_integer, marked = all(isinstance(value, int) for value in values), sorted(set(values))
    return Axis(
        label,
        low,
        high,
        log,
        marked=tuple(marked) if is_integer and len(marked) < NUM_TICKS else (),
        integer=is_integer,
    )


def category_axis(label: str, names: Sequence[str]) -> Axis:
    return Axis(label, -0.5, len(names) - 0.5, names=tuple(names))
