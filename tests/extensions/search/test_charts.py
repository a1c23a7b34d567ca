"""Axes of charts."""

import pytest

from showattendtell.extensions.search.charts import axis_over, category_axis


def test_places_lie_between_the_margins_in_proportion():
    axis = axis_over("x", [10.0, 20.0])
    assert [axis.position(value) for value in (10, 15, 20)] == [4, 50, 96]


def test_a_log_axis_has_equal_steps_for_equal_factors():
    axis = axis_over("x", [1e-4, 1e-2], log=True)
    assert [axis.position(value) for value in (1e-4, 1e-3, 1e-2)] == pytest.approx([4, 50, 96])
    assert [label for _, label in axis.ticks] == ["0.0001", "0.001", "0.01"]
    assert [label for _, label in axis_over("x", [0.0002, 0.002], log=True).ticks] == [
        "0.0002",
        "0.0005",
        "0.001",
        "0.002",
    ]


@pytest.mark.parametrize("log", [False, True])
def test_a_single_value_is_in_the_middle(log: bool):
    assert axis_over("x", [3.0], log).position(3.0) == pytest.approx(50)


def test_ticks_are_round_numbers_within_the_axis():
    assert [label for _, label in axis_over("x", [9.7, 18.4]).ticks] == ["10", "12", "14", "16", "18"]


def test_integers_have_ticks_at_integers():
    assert [label for _, label in axis_over("epoch", [1, 2]).ticks] == ["1", "2"]
    assert [label for _, label in axis_over("width", [128, 32, 96, 32]).ticks] == ["32", "96", "128"]
    assert [label for _, label in axis_over("trial", list(range(12))).ticks] == ["0", "5", "10"]
    assert [label for _, label in axis_over("trial", list(range(7))).ticks] == ["0", "2", "4", "6"]


def test_scores_of_nearly_zero_have_a_tick_at_zero():
    assert axis_over("BLEU-4", [3e-12, 40.1]).ticks[0] == (4, "0")


def test_a_log_axis_has_few_ticks():
    ticks = axis_over("x", [0.0002, 0.0134], log=True).ticks
    assert [label for _, label in ticks] == ["0.0003", "0.001", "0.003", "0.01"]


def test_categories_have_equal_distances():
    ticks = category_axis("x", ["a", "b"]).ticks
    assert [label for _, label in ticks] == ["a", "b"]
    assert [place for place, _ in ticks] == [27, 73]
