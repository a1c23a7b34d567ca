import pytest

from showattendtell.metrics.attention import score_relations


def test_accuracy_stands_beside_always_saying_the_commonest():
    pairs = [("left", "left"), ("left", "right"), ("above", "above"), ("left", "left"), ("near", "below")]
    assert score_relations(pairs) == (pytest.approx(3 / 5), pytest.approx(3 / 5), 5)
    assert score_relations([("left", "right"), ("above", "above")]) == (0.5, 0.5, 2)


def test_no_relation_at_all_is_none_right():
    assert score_relations([]) == (0, 0, 0)
