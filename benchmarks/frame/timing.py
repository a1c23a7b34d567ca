"""Ways of doing the same, timed in turns; and how times grow."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Times = dict[str, list[float]]

PROPORTION = 2.2
"""A goal: what doubles takes at most so many times as long."""


def interleave(ways: Mapping[str, Callable[[], object]], seconds: float, least: int = 3, most: int = 25) -> Times:
    """Seconds of each way in every round, after a round that warms up.

    A round does every way once, so that whatever else the machine does hits all alike. There are as many rounds as fit
    into `seconds`, at least `least` and at most `most`.
    """
    times: Times = {name: [] for name in ways}
    started, rounds = time.perf_counter(), 0
    while rounds <= least or (rounds <= most and (time.perf_counter() - started) * (1 + 1 / rounds) < seconds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began)
        rounds += 1
    return {name: taken[1:] for name, taken in times.items()}


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in times.items()}


def a_doubling(sizes: Sequence[float], values: Sequence[float]) -> float:
    """What the value is multiplied by where the size doubles, from the first to the last of both: 2 ** exponent."""
    return 2 ** (math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0]))
