import numpy as np
import pytest

from showattendtell.metrics.pointing import Look, pointing_game
from showattendtell.records import Box

SEEN = Box(100, 0, 300, 200)
"""A 2 x 4 grid on it has regions 50 wide and 100 high."""


def look(row: int, column: int, *boxes: Box) -> Look:
    weights = np.full((2, 4), 0.1)
    weights[row, column] = 0.3
    return Look(weights, SEEN, boxes)


def test_a_hit_is_a_peak_whose_regions_centre_lies_in_the_box():
    assert pointing_game([look(0, 0, Box(124, 49, 126, 51))]).hit_rate == 1
    assert pointing_game([look(1, 3, Box(274, 149, 276, 151))]).hit_rate == 1


def test_a_miss_is_a_peak_elsewhere():
    assert pointing_game([look(0, 1, Box(124, 49, 126, 51))]).hit_rate == 0


def test_any_of_several_boxes_counts_and_the_rate_is_over_words():
    far, near = Box(0, 0, 1, 1), Box(170, 40, 180, 60)
    result = pointing_game([look(0, 1, far, near), look(0, 1, far), look(0, 1, near)])
    assert result == (pytest.approx(2 / 3), 3)


def test_no_words_is_no_hit():
    assert pointing_game([]) == (0, 0)
