"""What a metric keeps of images' captions: enough for its figures of every corpus that these images make up.

N is the number of images, R that of corpora.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = Sequence[str]
Array = NDArray[np.float64]


class Pair(NamedTuple):
    """An image's caption and what people say of it: words with spaces between, as pycocoevalcap takes them."""

    hypothesis: str
    references: list[str]


def pair_up(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[Pair]:
    """The pairs of a corpus; a ValueError unless there are images, each with a caption and a reference at least."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"as many captions as images are needed, got {len(hypotheses)} for {len(references)}")
    if not all(references):
        raise ValueError(
            f"every image needs a reference, number {[bool(said) for said in references].index(False)} has none"
        )
    return [
        Pair(" ".join(words), [" ".join(said) for said in human])
        for words, human in zip(hypotheses, references, strict=True)
    ]


class Measured(ABC):
    """What a metric has seen of N images' captions.

    by_image  (N, ...) the images' scores, or whatever their sums yield the figures of
    """

    by_image: Array

    @abstractmethod
    def figures(self, copies: Array) -> dict[str, Array]:
        """The metric's figures (R,) of R corpora, without another look at the captions; rates in percent.

        Args:
            copies: (R, N) how often each image stands in each corpus.
        """


@dataclass(frozen=True, eq=False)
class Means(Measured):
    """A metric whose figure is the mean over images.

    name      the figure's
    by_image  (N,) the images' scores, in percent
    """

    name: str
    by_image: Array

    def figures(self, copies: Array) -> dict[str, Array]:
        return {self.name: copies @ self.by_image / copies.sum(axis=1)}


def corpus_figures(measured: Iterable[Measured]) -> dict[str, float]:
    """The figures of the corpus itself, in which every image stands once."""
    return {
        name: float(figure)
        for metric in measured
        for name, [figure] in metric.figures(np.ones((1, len(metric.by_image)))).items()
    }
