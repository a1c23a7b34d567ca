"""BLEU (Papineni et al. 2002) and CIDEr-D (Vedantam et al. 2015) by pycocoevalcap, and CIDEr-D and BLEU-4 of single
captions for rewards.

With c words in the captions of a corpus, r in the references of the closest length, and p_k the fraction of k-grams
that match a reference:

    BLEU-n = min(1, exp(1 - r / c)) (p_1 ... p_n)^(1/n)

The first factor is the brevity penalty. All these are ratios of sums over images, so the sums determine the score.

For CIDEr-D, with the count h_k(s) of n-gram k in caption s, the number N of images, and the document frequency f_k,
the number of images with k in a reference, the TF-IDF weights are

    g_k(s) = h_k(s) (log N - log max(1, f_k))

and the score of a caption c with references s_1, ..., s_M, mean over the n-gram lengths n = 1, ..., 4, is

    CIDEr-D(c) = 10/4 sum_n 1/M sum_j exp(-(l(c) - l(s_j))^2 / (2 sigma^2)) *
                 sum_k min(g_k(c), g_k(s_j)) g_k(s_j) / (|g(c)| |g(s_j)|)

The functions for single captions equal pycocoevalcap's scorers, but take document frequencies of other captions (the
training captions), and are fast enough for every training step.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import cook_refs, cook_test
from pycocoevalcap.cider.cider_scorer import CiderScorer

from showattendtell.metrics.bootstrap import Array, ImageMeans, SufficientStatistics
from showattendtell.metrics.tokenizers import Caption, CaptionPair, split_captions

SIGMA = 6.0
"""Standard deviation of the length penalty, in words."""

ORDERS = 4
"""Maximum length of n-grams."""

Ngram = tuple[str, ...]
Item = TypeVar("Item", bound=Hashable)
Counts = list[Counter[tuple[Item, ...]]]
"""Counts of the n-grams of a caption, for lengths from 1 to `ORDERS`."""


def count_ngrams(words: Sequence[Item]) -> Counts[Item]:
    """Count the n-grams of a caption: of its words, or of their ids."""
    return [Counter(zip(*(words[first:] for first in range(n)), strict=False)) for n in range(1, ORDERS + 1)]


class Weighted(NamedTuple):
    """TF-IDF weights of a caption.

    vectors  g by n-gram, for each n-gram length
    norms    |g| for each n-gram length
    pairs    number of bigrams, which pycocoevalcap takes for the length l
    """

    vectors: list[dict[Ngram, float]]
    norms: list[float]
    pairs: int


class SentenceCIDErD:
    """CIDEr-D of single captions, 0 to 10.

    Args:
        references: reference captions by image, which give the document frequencies: in how many images' captions an
            n-gram occurs.

    Raises:
        ValueError: an image has a string instead of a list of captions.
    """

    def __init__(self, references: Iterable[Sequence[Caption]]):
        captions = [split_captions(image_references, "the references of an image") for image_references in references]
        self._max_idf = math.log(max(1, len(captions)))
        self._idf: dict[Ngram, float] = {}  # of n-grams in several images; others, which are most, have the largest
        for order in range(ORDERS):
            frequencies = Counter[Ngram]()
            for image_references in captions:
                frequencies.update({ngram for words in image_references for ngram in count_ngrams(words)[order]})
            self._idf |= {ngram: self._max_idf - math.log(count) for ngram, count in frequencies.items() if count > 1}

    def weigh(self, counts: Counts[str]) -> Weighted:
        """Return the weights of a caption, given its n-grams."""
        idf, max_idf = self._idf.get, self._max_idf
        vectors = [{ngram: count * idf(ngram, max_idf) for ngram, count in ngrams.items()} for ngrams in counts]
        norms = [math.sqrt(sum(weight * weight for weight in vector.values())) for vector in vectors]
        return Weighted(vectors, norms, counts[1].total())

    def score(self, caption: Weighted, references: Sequence[Weighted]) -> float:
        """Return the mean over references and n-gram lengths, times 10."""
        return 10 * sum(_similarity(caption, reference) for reference in references) / len(references)

    def percent(self, caption: Caption, references: Sequence[Caption]) -> float:
        """Return CIDEr-D of a caption and its references in percent, as `measure_cider` does."""
        hypothesis, *others = (self.weigh(count_ngrams(words)) for words in split_captions([caption, *references]))
        return 100 * self.score(hypothesis, others)


def _similarity(caption: Weighted, reference: Weighted) -> float:
    """Return the mean over n-gram lengths of the clipped cosine, times the length penalty."""
    total = 0.0
    for weights, reference_weights, norm, other_norm in zip(
        caption.vectors, reference.vectors, caption.norms, reference.norms, strict=True
    ):
        if norm and other_norm:
            common = sum(
                min(weights[ngram], reference_weights[ngram]) * reference_weights[ngram]
                for ngram in weights.keys() & reference_weights.keys()
            )
            total += common / (norm * other_norm)
    return total / ORDERS * math.exp(-((caption.pairs - reference.pairs) ** 2) / (2 * SIGMA**2))


def bleu4(caption: Counts[Item], references: Sequence[Counts[Item]], smoothing: int = 0) -> float:
    """Return BLEU-4 of one caption, with brevity penalty by the closest reference, 0 to 1.

    Args:
        smoothing: added to the counts of n-grams with n >= 2; 1 is that of Lin and Och (2004).
    """
    length = caption[0].total()
    closest = min((abs(reference[0].total() - length), reference[0].total()) for reference in references)[1]
    if not length:
        return float(not closest)
    score = 1.0  # 1e-15 and 1e-9 are pycocoevalcap's, which avoid log 0 and division by 0
    for n, (ngrams, *reference_ngrams) in enumerate(zip(caption, *references, strict=True)):
        matched = sum(min(count, max(counts[ngram] for counts in reference_ngrams)) for ngram, count in ngrams.items())
        added = smoothing if n else 0
        score *= (matched + added + 1e-15) / (ngrams.total() + added + 1e-9)
    ratio = (length + 1e-15) / (closest + 1e-9)
    return score ** (1 / ORDERS) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)


def measure_cider(pairs: Sequence[CaptionPair]) -> ImageMeans:
    """Compute CIDEr-D with the document frequencies of these references, in percent: a published 0.94 is 94."""
    scorer = CiderScorer()
    for pair in pairs:
        scorer += tuple(pair)
    _, by_image = scorer.compute_score()
    return ImageMeans("cider", 100 * by_image)


@dataclass(frozen=True, eq=False)
class BleuCounts(SufficientStatistics):
    """Counts for BLEU, by image.

    by_image  (N, 10) matching 1- to 4-grams, all 1- to 4-grams, words of the caption and of the closest reference
    """

    by_image: Array

    def scores(self, copies: Array) -> dict[str, Array]:
        """Return BLEU-1 to BLEU-4 in percent, with and without brevity penalty, the penalty, and the lengths.

        Xu et al. report scores without brevity penalty, most later papers with it.
        """
        counts = copies @ self.by_image
        scores, penalty = _bleu(counts)
        named = {**_name_bleu(scores), **_name_bleu(scores * penalty, "_with_penalty"), "brevity_penalty": penalty}
        return {**named, "words": counts[:, 8], "reference_words": counts[:, 9]}

    def per_image(self) -> dict[str, Array]:
        """Return sentence BLEU-1 to BLEU-4 in percent, with brevity penalty."""
        scores, penalty = _bleu(self.by_image)
        return _name_bleu(scores * penalty)


def measure_bleu(pairs: Sequence[CaptionPair]) -> BleuCounts:
    """Count matching n-grams and lengths of every image."""
    cooked = [cook_test(pair.hypothesis, cook_refs(pair.references), eff="closest") for pair in pairs]
    counts = [[*image["correct"], *image["guess"], image["testlen"], image["reflen"]] for image in cooked]
    return BleuCounts(np.array(counts, dtype=np.float64).reshape(-1, 10))


def _bleu(counts: Array) -> tuple[Array, Array]:
    """Return BLEU-1 to BLEU-4 (4, M) without brevity penalty, 0 to 1, and the penalty (M,), from counts (M, 10)."""
    matching, ngrams, (words, reference_words) = np.split(counts.T, [4, 8])
    precisions = (matching + 1e-15) / (ngrams + 1e-9)  # pycocoevalcap's small numbers, as in `bleu4`
    penalty = np.exp(np.minimum(1 - reference_words / np.maximum(words, 1e-9), 0))
    scores = precisions.cumprod(axis=0) ** (1 / np.arange(1, 5)[:, np.newaxis])
    return scores * (words > 0), penalty


def _name_bleu(scores: Array, suffix: str = "") -> dict[str, Array]:
    return {f"bleu{n}{suffix}": 100 * values for n, values in enumerate(scores, start=1)}
