"""Sufficient statistics of metrics: the scores of every corpus made of the same images follow from them.

N is the number of images, R the number of corpora.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = Sequence[str]
Array = NDArray[np.float64]


class CaptionPair(NamedTuple):
    """A generated caption and its reference captions: words separated by spaces, as pycocoevalcap expects."""

    hypothesis: str
    references: list[str]


def pair_up(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[CaptionPair]:
    """Return the pairs of a corpus; a ValueError without images, or unless each has a caption and a reference."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"as many captions as images are needed, got {len(hypotheses)} for {len(references)}")
    if not all(references):
        raise ValueError(
            f"every image needs a reference, number {[bool(said) for said in references].index(False)} has none"
        )
    return [
        CaptionPair(" ".join(words), [" ".join(said) for said in human])
        for words, human in zip(hypotheses, references, strict=True)
    ]


class SufficientStatistics(ABC):
    """Statistics of a metric on the captions of N images.

    by_image  (N, ...) scores of the images, or quantities whose sums give the scores
    """

    by_image: Array

    @abstractmethod
    def figures(self, copies: Array) -> dict[str, Array]:
        """Return the metric's scores (R,) of R corpora, without reading the captions again; rates in percent.

        Args:
            copies: (R, N) the count of each image in each corpus.
        """


@dataclass(frozen=True, eq=False)
class ImageMeans(SufficientStatistics):
    """A metric whose score is the mean over images.

    name      name of the score
    by_image  (N,) scores of the images, in percent
    """

    name: str
    by_image: Array

    def figures(self, copies: Array) -> dict[str, Array]:
        return {self.name: copies @ self.by_image / copies.sum(axis=1)}


def corpus_figures(measured: Iterable[SufficientStatistics]) -> dict[str, float]:
    """Return the scores of the original corpus, in which every image counts once."""
    return {
        name: float(figure)
        for metric in measured
        for name, [figure] in metric.figures(np.ones((1, len(metric.by_image)))).items()
    }
