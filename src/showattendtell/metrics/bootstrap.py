"""Sufficient statistics of metrics, and the paired bootstrap test of two sets of captions (Koehn 2004).

N is the number of images, R the number of resamples: corpora of N images, drawn with replacement. A resample is given
by the count of each image in it. Its scores are computed from sums of per-image statistics, weighted by these counts,
so captions are read only once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class SufficientStatistics(ABC):
    """Statistics of a metric on the captions of N images.

    by_image  (N, ...) scores of the images, or quantities whose sums give the scores
    """

    by_image: Array

    @abstractmethod
    def scores(self, copies: Array) -> dict[str, Array]:
        """Return the metric's scores (R,) of R corpora, without reading the captions again; rates in percent.

        Args:
            copies: (R, N) the count of each image in each corpus.
        """

    @abstractmethod
    def per_image(self) -> dict[str, Array]:
        """Return the scores (N,) of each caption alone, by name; rates in percent."""


@dataclass(frozen=True, eq=False)
class ImageMeans(SufficientStatistics):
    """A metric whose score is the mean over images, or differs from it by a constant.

    name      name of the score
    by_image  (N,) scores of the images, in percent
    offset    the score minus the mean
    """

    name: str
    by_image: Array
    offset: float = 0.0

    def scores(self, copies: Array) -> dict[str, Array]:
        return {self.name: self.offset + copies @ self.by_image / copies.sum(axis=1)}

    def per_image(self) -> dict[str, Array]:
        return {self.name: self.by_image}


def corpus_scores(measured: Iterable[SufficientStatistics]) -> dict[str, float]:
    """Return the scores of the original corpus, in which every image counts once."""
    scores: dict[str, Array] = {}
    for metric in measured:
        scores |= metric.scores(np.ones((1, len(metric.by_image))))
    return {name: float(score) for name, [score] in scores.items()}


DIGITS = 4
"""Digits after the decimal point of the scores of single images in result files."""


def image_scores(images: Sequence[str], measured: Iterable[SufficientStatistics]) -> dict[str, dict[str, float]]:
    """Return the scores of each image by its name, as in result files."""
    scores: dict[str, dict[str, float]] = {image: {} for image in images}
    for metric in measured:
        for name, values in metric.per_image().items():
            for image, value in zip(images, values.tolist(), strict=True):
                scores[image][name] = round(value, DIGITS)
    return scores


Resampled = dict[str, Array]
"""Scores of a set of captions by name, (1 + R,): on the original images, then on each resample."""


Comparison = dict[str, dict[str, float]]
"""By the name of a score: the `difference` of b minus a on the original images; `low` and `high`, the limits of 95 % of
the resamples' differences; and `higher`, the fraction of resamples in which b's score is higher; ties count half."""


def draw_copies(num_images: int, num_resamples: int, seed: int) -> Array:
    """Return random counts (R, N) of each image in each resample."""
    generator = np.random.default_rng(seed)
    # N draws with replacement from N images: their counts have a multinomial distribution
    counts = generator.multinomial(num_images, np.full(num_images, 1 / num_images), size=num_resamples)
    return counts.astype(np.float64)


def resample(measured: Mapping[str, SufficientStatistics], copies: Array) -> Resampled:
    """Return the scores of the corpora given by the counts `copies` (R, N).

    Pass the same counts for every system that is compared: the test is paired.
    """
    corpora = np.vstack([np.ones(copies.shape[1]), copies])
    return {name: values for metric in measured.values() for name, values in metric.scores(corpora).items()}


RESAMPLES = 1_000


def intervals(
    measured: Mapping[str, SufficientStatistics], num_images: int, seed: int, num_resamples: int = RESAMPLES
) -> dict[str, tuple[float, float]]:
    """Return the limits of 95 % of the resamples' values of each score, by its name.

    They say how much a score depends on which images were drawn, not on the training.
    """
    resampled = resample(measured, draw_copies(num_images, num_resamples, seed))
    return {name: _limits(values[1:]) for name, values in resampled.items()}


def _limits(values: Sequence[float] | Array) -> tuple[float, float]:
    """Return the limits between which 95 % of the values are."""
    low, high = np.percentile(values, (2.5, 97.5)).tolist()
    return low, high


def compare_with_first(
    systems: Sequence[Mapping[str, SufficientStatistics]], num_images: int, num_resamples: int, seed: int
) -> list[Comparison]:
    """Compare every further system (b) with the first (a) on the same resamples.

    Args:
        systems: statistics of each system by metric.
    """
    if len(systems) < 2:
        return []
    copies = draw_copies(num_images, num_resamples, seed)
    first, *others = (resample(measured, copies) for measured in systems)
    return [compare(first, other) for other in others]


def compare(a: Resampled, b: Resampled) -> Comparison:
    """Return the differences, b minus a, of all scores that both have."""
    comparison = {}
    for name in [name for name in a if name in b]:
        difference, *resamples = b[name] - a[name]
        higher = np.mean(np.heaviside(resamples, 0.5))
        low, high = _limits(resamples)
        comparison[name] = {"difference": float(difference), "low": low, "high": high, "higher": float(higher)}
    return comparison
