"""Faithfulness of attention maps: whether the regions with large weights are those that the words depend on.

L is the number of regions of an image. The *effect* of region i on a word y_t is what leaving it out does to its
log-probability, with the words before it given:

    effect_ti = log p(y_t | a, y_<t) - log p(y_t | a without a_i, y_<t)

A map is any weighting of the regions: attention weights, an attribution, or a baseline that ignores the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from showattendtell.metrics.bootstrap import (
    Array,
    Difference,
    SufficientStatistics,
    compare_with_first,
    corpus_scores,
    intervals,
)

DELETED = (0.2, 0.4, 0.6, 0.8)
"""Fractions of the regions that are left out on the deletion and insertion curves."""

ATTENTION, RANDOM = "attention", "random"
"""Names of the maps that all others are compared with."""


class MapFaithfulness(NamedTuple):
    """Faithfulness of a map at one word, or its mean over words; None if it was not measured.

    rank_correlation       Spearman's rank correlation of the map with the effects, -1 to 1; 0 for a constant map
    magnitude_correlation  the same with |effect|: a region may also speak against the word
    top_tenth              whether the region with the largest weight is among the tenth of the regions with the largest
                           effects; of several equal weights, the fraction that is
    deletion               mean p of the word while regions are left out, largest weight first; small for a faithful map
    insertion              mean p of the word while regions are added, largest weight first; large for a faithful map
    magnitude_top_tenth    as top_tenth, with |effect|
    """

    rank_correlation: float | None = None
    magnitude_correlation: float | None = None
    top_tenth: float | None = None
    deletion: float | None = None
    insertion: float | None = None
    magnitude_top_tenth: float | None = None


class WordFaithfulness(NamedTuple):
    """Faithfulness of each map at a word of an image, and the largest effect of a region on the word, in nats."""

    maps: Mapping[str, MapFaithfulness]
    largest_effect: float
    image: str = ""


Interval = tuple[float, float]


class FaithfulnessScores(NamedTuple):
    """Means over words.

    maps            of each map, over the words at which it was measured
    intervals       95 % intervals of each field of each map, by a bootstrap of the images
    against         differences of each map's deletion and insertion to those of random maps and of attention, with 95 %
                    intervals of a paired bootstrap
    largest_effect  median over words of the largest effect of any region, in nats
    num_words       number of words with effects
    num_curves      number of words with curves
    """

    maps: dict[str, MapFaithfulness]
    intervals: dict[str, dict[str, Interval]]
    against: dict[str, dict[str, dict[str, Difference]]]
    largest_effect: float
    num_words: int
    num_curves: int


def rank_agreement(weights: Array, effects: Array) -> MapFaithfulness:
    """Compare a map (L,) with the effects (L,) of the regions; `deletion` and `insertion` remain None."""
    return MapFaithfulness(
        _rank_correlation(weights, effects),
        _rank_correlation(weights, np.abs(effects)),
        _hits_top_tenth(weights, effects),
        magnitude_top_tenth=_hits_top_tenth(weights, np.abs(effects)),
    )


def _hits_top_tenth(weights: Array, effects: Array) -> float:
    """Return the fraction of the largest weights (of one, unless weights are equal) at the largest tenth of effects."""
    top = np.zeros(len(effects))
    top[np.argsort(-effects, kind="stable")[: max(1, round(len(effects) / 10))]] = 1
    return float(top[weights == weights.max()].mean())


def _rank_correlation(values: Array, other_values: Array) -> float:
    """Return Spearman's rank correlation, 0 if one of them is constant."""
    from scipy.stats import rankdata  # here, because tables of scores do not wait for it

    ranks, other_ranks = (rankdata(x) - (len(x) + 1) / 2 for x in (values, other_values))
    norm = np.sqrt((ranks**2).sum() * (other_ranks**2).sum())
    return float((ranks * other_ranks).sum() / norm) if norm else 0.0


def num_deleted(regions: int) -> list[int]:
    """Return the numbers of regions that are left out on the curves, ascending, at least one of each kept and left
    out."""
    return sorted({min(max(1, round(fraction * regions)), regions - 1) for fraction in DELETED})


def score_faithfulness(words: Sequence[WordFaithfulness], resamples: int = 1000) -> FaithfulnessScores:
    """Return the means over words, nan without words.

    Args:
        resamples: number of bootstrap samples.
    """
    images = list(dict.fromkeys(word.image for word in words))
    names = dict.fromkeys(name for word in words for name in word.maps)
    maps, limits = {}, {}
    for name in names:
        measured = _statistics(words, name, images, MapFaithfulness._fields)
        maps[name] = MapFaithfulness(**corpus_scores(measured.values()))
        limits[name] = intervals(measured, len(images), 0, resamples)
    against: dict[str, dict[str, dict[str, Difference]]] = {}
    for baseline in (RANDOM, ATTENTION):
        for name in names if baseline in names else ():
            # both maps at the same words
            compared = [word for word in words if _has_curve(word, baseline) and _has_curve(word, name)]
            if name != baseline and compared:
                pair = [_statistics(compared, each, images, ("deletion", "insertion")) for each in (baseline, name)]
                [comparison] = compare_with_first(pair, len(images), resamples, 0)
                against.setdefault(baseline, {})[name] = comparison.differences
    effect = float(np.median([word.largest_effect for word in words])) if words else float("nan")
    num_curves = sum(_has_curve(word, RANDOM) for word in words)
    return FaithfulnessScores(maps, limits, against, effect, len(words), num_curves)


def _has_curve(word: WordFaithfulness, name: str) -> bool:
    return name in word.maps and word.maps[name].deletion is not None


@dataclass(frozen=True, eq=False)
class MeanOverWords(SufficientStatistics):
    """A score that is a mean over words, of which images have different numbers.

    name      name of the score
    by_image  (I, 2) the sum over the words of each image, and their number
    """

    name: str
    by_image: Array

    def scores(self, copies: Array) -> dict[str, Array]:
        """Return the mean of each corpus that has words: a resample may consist of images without any."""
        sums, counts = (copies @ self.by_image).T
        return {self.name: sums[counts > 0] / counts[counts > 0]}


def _statistics(
    words: Sequence[WordFaithfulness], name: str, images: Sequence[str], fields: Sequence[str]
) -> dict[str, MeanOverWords]:
    """Return the statistics of those fields of a map that were measured at any of the words."""
    index, statistics = {image: i for i, image in enumerate(images)}, {}
    for field in fields:
        by_image = np.zeros((len(images), 2))
        for word in words:
            value = getattr(word.maps.get(name), field, None)
            if value is not None:
                by_image[index[word.image]] += value, 1
        if by_image.any():
            statistics[field] = MeanOverWords(field, by_image)
    return statistics
