"""CIDEr-D and BLEU-4 of single captions, fast enough for every training step.

Scores equal those of pycocoevalcap's scorers, but its CIDEr-D counts document frequencies in the scored captions;
here they are given.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pycocoevalcap.cider.cider_scorer import CiderScorer

from showattendtell.data.tokenizers import ORDERS, Counts, count_ngrams
from showattendtell.metrics.bootstrap import ImageMeans
from showattendtell.metrics.tokenizers import Caption, CaptionPair, split_captions

SIGMA = 6.0

Ngram = tuple[str, ...]


class DocumentFrequencies(NamedTuple):
    """Document frequencies of n-grams: in how many images' captions each occurs.

    images     number of images
    recurrent  counts of n-grams in more than one image; CIDEr treats one image and none alike
    """

    images: int
    recurrent: dict[Ngram, int]

    @classmethod
    def of(cls, references: Iterable[Sequence[Caption]]) -> "DocumentFrequencies":
        """Count n-grams in the reference captions of images."""
        captions = [split_captions(said, "the references of an image") for said in references]
        recurrent: dict[Ngram, int] = {}
        for order in range(ORDERS):
            by_image = ({run for words in said for run in count_ngrams(words)[order]} for said in captions)
            counts = Counter(run for runs in by_image for run in runs)
            recurrent |= {run: count for run, count in counts.items() if count > 1}
        return cls(len(captions), recurrent)

    @property
    def sha256(self) -> str:
        """Return a hash; two runs had the same reward if it is equal."""
        digest = hashlib.sha256(f"{self.images}\n".encode())
        for run in sorted(self.recurrent):
            digest.update(f"{' '.join(run)}\t{self.recurrent[run]}\n".encode())
        return digest.hexdigest()


class Weighted(NamedTuple):
    """TF-IDF vectors of a caption by n-gram length: counts times inverse document frequency; the vectors' norms; its
    bigrams."""

    vectors: list[dict[Ngram, float]]
    norms: list[float]
    pairs: int


class CiderD:
    """CIDEr-D (Vedantam et al. 2015) of captions, 0 to 10."""

    def __init__(self, frequencies: DocumentFrequencies):
        self._rarest = math.log(max(1, frequencies.images))
        self._rarity = {run: self._rarest - math.log(count) for run, count in frequencies.recurrent.items()}

    def weigh(self, counts: Counts[str]) -> Weighted:
        rarity, rarest = self._rarity.get, self._rarest
        vectors = [{run: count * rarity(run, rarest) for run, count in each.items()} for each in counts]
        norms = [math.sqrt(sum(weight * weight for weight in vector.values())) for vector in vectors]
        return Weighted(vectors, norms, counts[1].total())

    def score(self, caption: Weighted, references: Sequence[Weighted]) -> float:
        """Return the mean over references and n-gram lengths, times 10."""
        return 10 * sum(_similarity(caption, said) for said in references) / len(references)


def _similarity(caption: Weighted, said: Weighted) -> float:
    """Return the cosine with counts clipped to the reference, times a Gaussian of the length difference."""
    total = 0.0
    for own, other, norm, other_norm in zip(caption.vectors, said.vectors, caption.norms, said.norms, strict=True):
        if norm and other_norm:
            common = sum(min(own[run], other[run]) * other[run] for run in own.keys() & other.keys())
            total += common / (norm * other_norm)
    return total / ORDERS * math.exp(-((caption.pairs - said.pairs) ** 2) / (2 * SIGMA**2))


def bleu4(caption: Counts[str], references: Sequence[Counts[str]]) -> float:
    """Return BLEU-4 of one caption, with brevity penalty by the closest reference, 0 to 1."""
    score = 1.0
    for own, *others in zip(caption, *references, strict=True):
        matched = sum(min(count, max(other[run] for other in others)) for run, count in own.items())
        score *= (matched + 1e-15) / (own.total() + 1e-9)
    length = caption[0].total()
    closest = min((abs(said[0].total() - length), said[0].total()) for said in references)[1]
    ratio = (length + 1e-15) / (closest + 1e-9)
    return score ** (1 / ORDERS) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)


def measure_cider(pairs: Sequence[CaptionPair]) -> ImageMeans:
    """Compute CIDEr-D (Vedantam et al. 2015), with the document frequencies of all references given here.

    A published CIDEr of 0.94 is 94 here.
    """
    scorer = CiderScorer()
    for pair in pairs:
        scorer += tuple(pair)
    _, by_image = scorer.compute_score()
    return ImageMeans("cider", 100 * by_image)
