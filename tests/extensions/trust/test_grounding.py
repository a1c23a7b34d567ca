"""F1 of grounded captions against counts by hand (Zhou et al. 2019)."""

import numpy as np
import pytest

from showattendtell.extensions.trust.grounding import (
    GroundedCaption,
    GroundedObject,
    attended_box,
    intersection_over_union,
    score_grounding,
)
from showattendtell.extensions.trust.metrics import Grounding
from showattendtell.types import Box, RegionBoxes

LEFT, RIGHT, WHOLE = Box(0, 0, 0.5, 1), Box(0.5, 0, 1, 1), Box(0, 0, 1, 1)


def thing(name: str, *boxes: Box) -> GroundedObject:
    return GroundedObject(name, boxes or (LEFT,))


def test_the_overlap_of_boxes():
    assert intersection_over_union(LEFT, LEFT) == 1
    assert intersection_over_union(LEFT, RIGHT) == 0
    assert intersection_over_union(LEFT, WHOLE) == 0.5
    assert intersection_over_union(Box(0, 0, 0.5, 0.5), Box(0.25, 0, 0.75, 0.5)) == pytest.approx(1 / 3)
    assert intersection_over_union(Box(0, 0, 0, 0), Box(0, 0, 0, 0)) == 0


IMAGES = [
    (
        [thing("man"), thing("dog"), thing("ball"), thing("man", RIGHT)],
        [
            GroundedCaption((thing("man", RIGHT, LEFT), thing("dog", RIGHT)), frozenset({"ball"})),
            GroundedCaption((thing("man", RIGHT), thing("tree"))),
        ],
    ),
    ([thing("dog"), thing("cat")], [GroundedCaption((thing("dog"), thing("dog", RIGHT)))]),
]


def test_scores_worked_by_hand():
    """Classes of the references: man, dog, tree.

    Precision. man: 1 and 1 in the first reference, 0 and 1 in the second: 3/4. dog: 0, and wrong in the second
    reference; 1 in the second image: 1/3, or 1/2 of those that are in the reference. tree: 0. Ball and cat are of no
    class.
    Recall. man: 1, and 0, since its first box counts: 1/2. dog: 0; 1 and 0 in the second image: 1/3. tree: 0.
    """
    found = score_grounding(IMAGES)
    precision, recall = (3 / 4 + 1 / 3 + 0) / 3, (1 / 2 + 1 / 3 + 0) / 3
    precision_loc = (3 / 4 + 1 / 2 + 0) / 3
    assert (found.precision_all, found.recall_all) == pytest.approx((precision, recall))
    assert (found.precision_loc, found.recall_loc) == pytest.approx((precision_loc, recall))
    assert found.f1_all == pytest.approx(2 * precision * recall / (precision + recall))
    assert found.f1_loc == pytest.approx(2 * precision_loc * recall / (precision_loc + recall))
    assert found.num_classes == 3


def test_an_object_that_is_missed_lowers_f1_all_and_not_f1_loc():
    first, second = [thing("man")], [GroundedCaption((thing("man"),))]
    missed = [(first, second), ([], second)]
    assert score_grounding([(first, second)])[:6] == (1, 1, 1, 1, 1, 1)
    assert score_grounding(missed).recall_all == 0.5
    assert score_grounding(missed).f1_loc == 1


def test_an_object_that_a_reference_names_without_a_box_is_ignored():
    with_box = GroundedCaption((thing("man"),))
    named = with_box._replace(others=frozenset({"dog"}))
    generated = [thing("man"), thing("dog")]
    dog = ([thing("dog")], [GroundedCaption((thing("dog"),))])
    assert score_grounding([(generated, [named]), dog]).precision_all == 1
    assert score_grounding([(generated, [with_box]), dog]).precision_all == pytest.approx((1 + 1 / 2) / 2)


def test_an_overlap_of_exactly_a_half_is_not_enough():
    assert score_grounding([([thing("man", LEFT)], [GroundedCaption((thing("man", WHOLE),))])]).f1_all == 0


def test_the_metric_gathers_batches():
    metric = Grounding()
    for generated, references in IMAGES:
        metric.update([generated], [references])
    expected = score_grounding(IMAGES)
    assert metric.scores() == expected
    found = {name: value.item() for name, value in metric.compute().items()}
    assert (found["f1_all"], found["classes"]) == (pytest.approx(100 * expected.f1_all), 3)
    assert Grounding().compute()["f1_all"] == 0


def test_different_numbers_of_images_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        Grounding().update([[]], [])


def test_the_attended_box_is_around_the_maximum():
    weights = np.array(
        [
            [0.1, 0.0, 0.0, 0.9],
            [0.0, 0.5, 1.0, 0.0],
            [0.0, 0.4, 0.6, 0.0],
        ]
    )
    assert attended_box(weights, WHOLE) == pytest.approx((0.25, 1 / 3, 0.75, 1))
    assert attended_box(weights, WHOLE, peak=0.95) == pytest.approx((0.5, 1 / 3, 0.75, 2 / 3))
    seen = Box(0.2, 0, 0.6, 0.5)
    assert attended_box(weights, seen) == pytest.approx((0.3, 1 / 6, 0.5, 0.5))


def test_a_uniform_map_attends_to_all_that_is_seen():
    assert attended_box(np.full((3, 4), 1 / 12), RIGHT) == pytest.approx(RIGHT)


def test_of_boxes_a_model_attends_to_the_one_with_the_largest_weight():
    regions = RegionBoxes((Box(0, 0, 0.4, 0.4), Box(0.2, 0.2, 0.6, 0.6)))
    assert attended_box(np.array([0.4, 0.6]), regions) == regions.boxes[1]
