"""Baselines of caption scores without a model: the best constant caption, and one reference against the others."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from showattendtell.data.tokenizers import count_ngrams
from showattendtell.metrics.cider import DocumentFrequencies, Ngram, SentenceCIDErD, Weighted
from showattendtell.metrics.tokenizers import Caption, Words, split_captions

SHORTLIST = 20
"""Number of candidates for the constant caption that are compared exactly."""


class WeightedReferences:
    """Reference captions of images with their CIDEr-D weights; document frequencies are those of all of them.

    Args:
        references: the captions of each image, at least one.
    """

    def __init__(self, references: Sequence[Sequence[Caption]]):
        self.captions = [split_captions(captions, "the references of an image") for captions in references]
        self._cider = SentenceCIDErD(DocumentFrequencies.of(self.captions))
        self._weighted = [[self._cider.weigh(count_ngrams(words)) for words in captions] for captions in self.captions]

    def best_constant(self) -> Words:
        """Return the caption with the highest mean CIDEr-D over all images, among the captions of all images.

        The candidates are ranked by CIDEr without clipping and length penalty, which is a scalar product with the mean
        of the normalized references: cos(c, s) averaged over s is c / |c| times the average of s / |s|. The first
        `SHORTLIST` are compared exactly.
        """
        means: list[dict[Ngram, float]] = [defaultdict(float) for _ in range(4)]
        for weighted_captions in self._weighted:
            for caption in weighted_captions:
                for mean, vector, norm in zip(means, caption.vectors, caption.norms, strict=True):
                    for ngram, weight in vector.items() if norm else ():
                        mean[ngram] += weight / norm / len(weighted_captions)
        candidates = {
            tuple(words): weighted
            for weighted_captions, captions in zip(self._weighted, self.captions, strict=True)
            for weighted, words in zip(weighted_captions, captions, strict=True)
        }
        ranked = sorted(candidates, key=lambda words: -_product(candidates[words], means))[:SHORTLIST]
        return max(ranked, key=lambda words: self._mean_score(candidates[words]))

    def consensus(self, image: int) -> Words:
        """Return the caption of an image with the highest CIDEr-D against the image's other captions."""
        captions = self._weighted[image]
        if len(captions) == 1:
            return self.captions[image][0]
        scores = [self._cider.score(caption, captions[:n] + captions[n + 1 :]) for n, caption in enumerate(captions)]
        return self.captions[image][scores.index(max(scores))]

    def _mean_score(self, caption: Weighted) -> float:
        return math.fsum(self._cider.score(caption, references) for references in self._weighted) / len(self._weighted)


def _product(caption: Weighted, means: Sequence[dict[Ngram, float]]) -> float:
    pairs = zip(caption.vectors, caption.norms, means, strict=True)
    return sum(sum(w * mean[k] for k, w in vector.items()) / norm for vector, norm, mean in pairs if norm)


class Round(NamedTuple):
    """One round of leave-one-out: of each image one reference as hypothesis, and the others as references.

    images  indices of the images; those with a single reference are left out
    """

    images: list[int]
    hypotheses: list[Words]
    references: list[list[Words]]


def leave_one_out(references: Sequence[Sequence[Words]]) -> Iterator[Round]:
    """Yield a round for each position of a reference that all images with several references have; none without such
    images."""
    images = [i for i, captions in enumerate(references) if len(captions) > 1]
    for left_out in range(min((len(references[i]) for i in images), default=0)):
        yield Round(
            images,
            [references[i][left_out] for i in images],
            [[*references[i][:left_out], *references[i][left_out + 1 :]] for i in images],
        )
