"""Whether two sets of captions differ by more than the choice of images: the paired bootstrap (Koehn 2004).

N is the number of images, R that of resamples: corpora of N images, drawn from them with replacement.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from showattendtell.metrics.java import MetricError
from showattendtell.metrics.measured import Array, Measured, corpus_figures

INTERVAL = (2.5, 97.5)
"""The percentiles between which 95 % of the resamples lie."""


class Resampled(NamedTuple):
    """The figures of a set of captions by name.

    corpus: of the images as they are.
    resamples: (R,) of each resample.
    missing: the metrics that failed on the resamples, with the reason.
    """

    corpus: dict[str, float]
    resamples: dict[str, Array]
    missing: dict[str, str]


class Difference(NamedTuple):
    """By how much b's figure is higher than a's.

    difference: on the images as they are.
    low, high: between them lie 95 % of the resamples' differences.
    higher: the share of resamples in which b's figure is the higher; one in which both are equal counts half.
    """

    difference: float
    low: float
    high: float
    higher: float


class Comparison(NamedTuple):
    """The differences of b and a by figure, and why a metric has none."""

    differences: dict[str, Difference]
    missing: dict[str, str]

    def describe(self) -> dict[str, Any]:
        """As result files have it."""
        figures = {name: difference._asdict() for name, difference in self.differences.items()}
        return {"differences": figures, "missing": self.missing}


def draw_copies(num_images: int, num_resamples: int, seed: int) -> Array:
    """(R, N): how many times each image stands in each resample."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(num_images, np.full(num_images, 1 / num_images), size=num_resamples)
    return drawn.astype(np.float64)


def resample(measured: Mapping[str, Measured], copies: Array) -> Resampled:
    """The figures of the corpora that `copies` (R, N) say; systems are paired by being given the same ones."""
    resampled = Resampled({}, {}, {})
    for metric, seen in measured.items():
        try:
            resampled.resamples.update(seen.figures(copies))
            resampled.corpus.update(corpus_figures([seen]))
        except MetricError as fault:
            resampled.missing[metric] = str(fault)
    return resampled


def compare_with_first(
    systems: Sequence[Mapping[str, Measured]], num_images: int, num_resamples: int, seed: int
) -> list[Comparison]:
    """Every further system, b, with the first, a; all are measured on the same resamples."""
    if len(systems) < 2:
        return []
    copies = draw_copies(num_images, num_resamples, seed)
    first, *others = (resample(measured, copies) for measured in systems)
    return [compare(first, other) for other in others]


def average(systems: Sequence[Resampled]) -> Resampled:
    """The means of systems' figures, as of one model's seeds; of those figures that all have."""
    shared = [name for name in systems[0].corpus if all(name in system.corpus for system in systems)]
    return Resampled(
        {name: float(np.mean([system.corpus[name] for system in systems])) for name in shared},
        {name: np.mean([system.resamples[name] for system in systems], axis=0) for name in shared},
        {metric: reason for system in systems for metric, reason in system.missing.items()},
    )


def compare(a: Resampled, b: Resampled) -> Comparison:
    """Every figure that both have."""
    differences = {
        name: _summarise(b.corpus[name] - figure, b.resamples[name] - a.resamples[name])
        for name, figure in a.corpus.items()
        if name in b.corpus
    }
    return Comparison(differences, {**a.missing, **b.missing})


def _summarise(difference: float, resamples: Array) -> Difference:
    low, high = np.percentile(resamples, INTERVAL)
    higher = np.mean(resamples > 0) + np.mean(resamples == 0) / 2
    return Difference(difference, float(low), float(high), float(higher))
