import pytest

from showattendtell.metrics import CIDErD
from showattendtell.metrics.diversity import compare_captions, disagreement, diversity

CAPTIONS = [["a", "dog", "runs"], ["a", "dog", "runs"], ["a", "dog"], ["a"], []]


def test_figures_worked_by_hand():
    """9 words, 3 distinct; the pairs are a-dog three times and dog-runs twice."""
    assert diversity(CAPTIONS) == pytest.approx(
        {
            "distinct_captions": 4,
            "distinct_words": 3,
            "distinct1": 100 * 3 / 9,
            "distinct2": 100 * 2 / 5,
            "mean_length": 9 / 5,
        }
    )


def test_novel_captions_are_none_of_the_trainings():
    assert diversity(CAPTIONS, [("a", "dog", "runs"), ("dogs",)])["novelty"] == pytest.approx(100 * 3 / 5)
    assert diversity(CAPTIONS, [])["novelty"] == 100


@pytest.mark.parametrize(
    ("captions", "expected"),
    [
        (["a dog runs", "a dog runs"], 0),
        (["a dog runs", "two men"], 1),
        (["a dog runs", "a cat runs fast"], 1 - 2 * 2 / 7),
        (["a dog", "a dog", "a cat"], (0 + 0.5 + 0.5) / 3),
        (["a dog"], 0),
        (["", ""], 0),
        ([], 0),
    ],
)
def test_captions_disagree_by_the_words_that_they_do_not_have_in_common(captions: list[str], expected: float):
    assert disagreement(captions) == pytest.approx(expected)


def test_several_captions_of_an_image_are_compared_with_each_other_and_with_the_references():
    references = [["a dog runs in snow"], ["two men sit here now"]]
    captions = [["a dog runs in snow", "two men sit here now"], ["men", "men"]]
    one_by_one = [CIDErD(), CIDErD()]
    for rank, metric in enumerate(one_by_one):
        metric.update([several[rank] for several in captions], references)
    first, second = (metric.per_caption()["cider"].tolist() for metric in one_by_one)
    found = compare_captions(captions, references)
    assert found["cider_best"] == pytest.approx((max(first[0], second[0]) + first[1]) / 2)
    assert found["cider_mean"] == pytest.approx((sum(first) + sum(second)) / 4)
    assert (found["distinct_per_image"], found["disagreement"]) == (1.5, 50)
