"""Kendall's tau against counts of pairs, and against published correlations."""

import math
from itertools import combinations

import numpy as np
import pytest
from repository import SHARED

from showattendtell.metrics.human_judgments import correlate, rank_correlation

FLICKR8K = SHARED / "flickr8k"


def count(scores: list[float], ratings: list[float]) -> tuple[float, float]:
    """tau-b and tau-c by their definitions, pair by pair."""
    signs = [
        (np.sign(a[0] - b[0]), np.sign(a[1] - b[1])) for a, b in combinations(zip(scores, ratings, strict=True), 2)
    ]
    agreeing = sum(x * y for x, y in signs)
    untied_x, untied_y = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    classes = min(len(set(scores)), len(set(ratings)))
    of_c = len(scores) ** 2 * (classes - 1) / classes / 2
    return 100 * agreeing / math.sqrt(untied_x * untied_y), 100 * agreeing / of_c


def test_a_correlation_worked_by_hand():
    """Pairs of scores 1 2 3 and ratings 1 1 2: one ties in the rating, two are concordant."""
    found = rank_correlation([1, 2, 3], [[1], [1], [2]])
    assert found.tau_b == pytest.approx(100 * 2 / math.sqrt(3 * 2))
    assert found.tau_c == pytest.approx(100 * 2 * 2 / (9 * 1 / 2))


def test_every_rating_counts_as_a_pair_of_its_own():
    rng = np.random.default_rng(0)
    scores, ratings = rng.integers(0, 8, 12).astype(float), rng.integers(1, 5, (12, 3))
    found = rank_correlation(scores, ratings.tolist())
    flat = [(score, float(rating)) for score, each in zip(scores, ratings, strict=True) for rating in each]
    assert found == pytest.approx(count(*map(list, zip(*flat, strict=True))))


def test_captions_may_have_different_numbers_of_ratings():
    assert rank_correlation([1, 2], [[1], [1, 2]]) == pytest.approx(count([1, 2, 2], [1, 1, 2]))


def test_a_score_without_differences_has_no_correlation():
    assert all(math.isnan(tau) for tau in rank_correlation([1, 1], [[1], [2]]))


def test_perfect_agreement_is_100():
    found = correlate({"own": np.array([1.0, 2.0, 3.0]), "reversed": np.array([3.0, 2.0, 1.0])}, [[1], [2], [3]])
    assert found == {"own": pytest.approx((100, 100)), "reversed": pytest.approx((-100, -100))}
