"""Compare nested values of JSON."""

import math
from collections.abc import Iterator
from typing import Any

TOLERANCE = 1e-4
"""Relative to the largest number of a list: the rounding of other processors and library versions is far below it."""


def differences(
    expected: Any, measured: Any, tolerance: float = 0.0, place: str = "", scale: float = 0.0
) -> Iterator[str]:
    """Yield a line for each value that differs.

    Args:
        tolerance: largest difference of two numbers, relative to the expected one or to `scale`.
        scale: the largest number of the list that the values are from.
    """
    if isinstance(expected, dict) and isinstance(measured, dict):
        for key in expected | measured:
            yield from differences(expected.get(key), measured.get(key), tolerance, f"{place}/{key}")
    elif isinstance(expected, list) and isinstance(measured, list) and len(expected) == len(measured):
        largest = max((abs(value) for value in expected if isinstance(value, float)), default=0.0)
        for index, pair in enumerate(zip(expected, measured, strict=True)):
            yield from differences(*pair, tolerance, f"{place}/{index}", largest)
    elif isinstance(expected, float) and isinstance(measured, float):
        if not math.isclose(expected, measured, rel_tol=tolerance, abs_tol=tolerance * scale):
            yield f"{place}: {expected!r} became {measured!r}"
    elif expected != measured:
        yield f"{place}: {expected!r} became {measured!r}"
