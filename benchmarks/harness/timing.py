"""Interleaved timing of variants, and growth of times with size."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Times = dict[str, list[float]]

MAX_ROUNDS = 25

PROPORTIONAL = 2.2
"""Goal for times that grow in proportion to size: the factor for twice the size, which is 2 without noise."""


def interleave(variants: Mapping[str, Callable[[], object]], seconds: float, min_rounds: int = 3) -> Times:
    """Return the seconds of every variant in each round, after a warm-up round.

    A round runs every variant once, so that other load on the machine affects all alike. There are as many rounds as
    fit into `seconds`, but at least `min_rounds` and at most `MAX_ROUNDS`.
    """
    times: Times = {name: [] for name in variants}
    started, rounds = time.perf_counter(), 0
    while rounds <= MAX_ROUNDS and (
        rounds <= min_rounds or (time.perf_counter() - started) * (1 + 1 / rounds) < seconds
    ):
        for name, variant in variants.items():
            times[name].append(seconds_of(variant))
        rounds += 1
    return {name: taken[1:] for name, taken in times.items()}


def seconds_of(work: Callable[[], object]) -> float:
    """Return the duration of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in times.items()}


def growth_factor(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the factor by which the value grows when the size doubles, from the first and the last of both."""
    return 2 ** (math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0]))
