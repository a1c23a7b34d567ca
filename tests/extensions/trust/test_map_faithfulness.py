"""Scores of maps against effects, held against scipy, torchmetrics' conventions and values worked out by hand."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from showattendtell.extensions.trust.map_faithfulness import (
    MapFaithfulness,
    WordFaithfulness,
    num_deleted,
    rank_agreement,
    score_faithfulness,
)


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys(ties: bool):
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights, effects = rng.random(49), rng.normal(size=49)
        if ties:
            weights, effects = weights.round(1), effects.round()
        expected = spearmanr(weights, effects).statistic
        found = rank_agreement(weights, effects)
        assert found.rank_correlation == pytest.approx(expected, abs=1e-12)
        assert found.magnitude_correlation == pytest.approx(spearmanr(weights, abs(effects)).statistic, abs=1e-12)


def test_a_constant_map_has_no_rank_and_hits_as_often_as_chance():
    found = rank_agreement(np.full(50, 0.02), np.arange(50.0))
    assert found.rank_correlation == 0
    assert found.top_tenth == pytest.approx(5 / 50)


@pytest.mark.parametrize(("place", "hit"), [(19, 1), (18, 1), (17, 0), (0, 0)])
def test_the_largest_weight_hits_the_tenth_with_the_largest_effects(place: int, hit: int):
    weights = np.zeros(20)
    weights[place] = 1
    assert rank_agreement(weights, np.arange(20.0)).top_tenth == hit


@pytest.mark.parametrize(("regions", "numbers"), [(10, [2, 4, 6, 8]), (81, [16, 32, 49, 65]), (2, [1]), (4, [1, 2, 3])])
def test_curves_leave_out_some_regions_and_keep_some(regions: int, numbers: list[int]):
    assert num_deleted(regions) == numbers


def made_up(number: int, better: float) -> list[WordFaithfulness]:
    """Words of different images, at which attention has a smaller deletion area than random maps, by `better` on
    average."""
    rng = np.random.default_rng(1)
    words = []
    for image in range(number):
        chance = rng.random()
        maps = {
            "attention": MapFaithfulness(0.5, 0.6, 1.0, chance - better + rng.normal(scale=0.1), 0.9),
            "random": MapFaithfulness(0.0, 0.0, 0.0, chance, 0.5),
        }
        words.append(WordFaithfulness(maps, rng.random(), str(image)))
    return words


def test_differences_to_random_maps_are_paired():
    scores = score_faithfulness(made_up(200, 0.1))
    difference = scores.against["random"]["attention"]["deletion"]
    assert difference.difference == pytest.approx(-0.1, abs=0.02)
    assert difference.low < difference.difference < difference.high < 0
    assert difference.higher < 0.01
    chance = score_faithfulness(made_up(200, 0.0)).against["random"]["attention"]["deletion"]
    assert chance.low < 0 < chance.high


def test_intervals_are_those_of_images_drawn_again():
    """Words of an image come together; an image with more words counts more."""
    rng = np.random.default_rng(2)
    by_image = [list(rng.normal(level, 0.1, size=rng.integers(1, 9))) for level in rng.normal(size=30)]
    words = [
        WordFaithfulness({"attention": MapFaithfulness(value)}, 0.0, str(image))
        for image, values in enumerate(by_image)
        for value in values
    ]
    low, high = score_faithfulness(words, resamples=4000).intervals["attention"]["rank_correlation"]
    drawn = [np.concatenate([by_image[image] for image in rng.integers(30, size=30)]).mean() for _ in range(4000)]
    np.testing.assert_allclose((low, high), np.percentile(drawn, (2.5, 97.5)), atol=0.04)
    mean = np.concatenate(by_image).mean()
    naive = 1.96 * np.concatenate(by_image).std() / len(words) ** 0.5
    assert low < mean < high
    assert high - low > 3 * naive, "words of an image are not independent"
    assert score_faithfulness(words).intervals["attention"].keys() == {"rank_correlation"}


def test_the_intervals_of_differences_are_those_of_images_drawn_again():
    """Each word of an image is given several times, which adds nothing to what is known."""
    once = made_up(30, 0.1)
    repeated = [word for word in once for _ in range(9)]
    expected, found = (score_faithfulness(words).against["random"]["attention"] for words in (once, repeated))
    for field in ("deletion", "insertion"):
        assert found[field] == pytest.approx(expected[field])


def test_words_without_curves_count_for_the_ranks_alone():
    words = [*made_up(3, 0.1), WordFaithfulness({"attention": MapFaithfulness(-1.0, 0.0, 0.0)}, 9.0)]
    scores = score_faithfulness(words)
    assert (scores.num_words, scores.num_curves) == (4, 3)
    assert scores.maps["attention"].rank_correlation == pytest.approx((3 * 0.5 - 1) / 4)
    assert scores.maps["attention"].insertion == pytest.approx(0.9)
    assert scores.largest_effect == np.median([word.largest_effect for word in words])


def test_without_words_there_are_no_scores():
    scores = score_faithfulness([])
    assert (scores.maps, scores.num_words) == ({}, 0)
    assert math.isnan(scores.largest_effect)
