"""Agreement of metrics with human judgments of captions, as Kendall's rank correlation.

With C concordant and D discordant pairs among n pairs of a score and a rating, T_x and T_y pairs that tie only in the
score and only in the rating, and m the smaller number of different values of both:

    tau-b = (C - D) / sqrt((C + D + T_x) (C + D + T_y))      tau-c = 2 (C - D) / (n^2 (m - 1) / m)

Every rating of a caption counts as a pair of its own.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from showattendtell.metrics.bootstrap import Array


class RankCorrelation(NamedTuple):
    """Kendall's tau-b and tau-c, times 100; nan if all scores or all ratings are equal."""

    tau_b: float
    tau_c: float


def rank_correlation(scores: Sequence[float] | Array, ratings: Sequence[Sequence[float]]) -> RankCorrelation:
    """Return the correlation of a metric with the ratings.

    Args:
        scores: (M,) one for each caption.
        ratings: M sequences, the ratings of each caption.
    """
    from scipy.stats import kendalltau  # here, so that tables of scores do not wait for it

    repeated = np.repeat(np.asarray(scores, dtype=np.float64), [len(image_ratings) for image_ratings in ratings])
    flat = np.array([rating for image_ratings in ratings for rating in image_ratings], dtype=np.float64)
    b, c = (float(kendalltau(repeated, flat, variant=variant).statistic) for variant in ("b", "c"))
    return RankCorrelation(100 * b, 100 * c)


def correlate(scores: Mapping[str, Array], ratings: Sequence[Sequence[float]]) -> dict[str, RankCorrelation]:
    """Return the correlation of each metric, by name."""
    return {name: rank_correlation(values, ratings) for name, values in scores.items()}
