"""Calibration of probabilities, and how far a confidence sorts captions by their quality."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from showattendtell.metrics.bootstrap import Array

BINS = 15
"""Number of bins of equal width between 0 and 1."""


class Reliability(NamedTuple):
    """A reliability diagram: predictions in bins of equal width of their probability.

    counts      number of predictions in each bin
    confidence  their mean probability, nan for an empty bin
    accuracy    the fraction of them that is correct, nan for an empty bin
    """

    counts: Array
    confidence: Array
    accuracy: Array

    @property
    def error(self) -> float:
        """Expected calibration error (Naeini et al. 2015): the mean of |accuracy - confidence| over predictions."""
        gaps = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float((self.counts * gaps).sum() / max(self.counts.sum(), 1))

    def mean(self, name: str) -> float:
        """Return the mean of `confidence` or `accuracy` over predictions."""
        return float((self.counts * np.nan_to_num(getattr(self, name))).sum() / max(self.counts.sum(), 1))

    def describe(self) -> dict[str, list[float | None]]:
        """Return the diagram for JSON, None for empty bins."""
        parts = self._asdict().items()
        return {name: [None if math.isnan(value) else value for value in part.tolist()] for name, part in parts}


def reliability(probabilities: ArrayLike, correct: ArrayLike, bins: int = BINS) -> Reliability:
    """Return the reliability diagram of predictions.

    Args:
        probabilities: (N,) of the predicted word, 0 to 1.
        correct: (N,) whether it is the right one.

    Raises:
        ValueError: the lengths differ.
    """
    p, is_correct = np.asarray(probabilities, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if p.shape != is_correct.shape:
        raise ValueError(f"got {len(p)} probabilities for {len(is_correct)} predictions")
    bin_index = np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)  # a bin includes its upper edge
    counts, sums, num_correct = (
        np.bincount(bin_index, weights, bins).astype(np.float64) for weights in (np.ones_like(p), p, is_correct)
    )
    with np.errstate(invalid="ignore"):
        return Reliability(counts, sums / counts, num_correct / counts)


def risk_coverage(confidence: ArrayLike, scores: ArrayLike) -> tuple[Array, Array]:
    """Return the coverage (N,), the fraction of captions that are kept, and the mean score (N,) of those, if the
    captions with the highest confidence are kept."""
    ordered = np.asarray(scores, dtype=np.float64)[np.argsort(-np.asarray(confidence), kind="stable")]
    num_kept = np.arange(1, len(ordered) + 1)
    return num_kept / max(len(ordered), 1), np.cumsum(ordered) / num_kept
