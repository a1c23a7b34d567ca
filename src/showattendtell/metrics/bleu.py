"""Corpus BLEU of captions (Papineni et al. 2002) by pycocoevalcap's scorer, with the closest reference length.

With c words in the captions, r in the closest references, and p_k the fraction of k-grams that match a reference:

    BLEU-n = min(1, exp(1 - r / c)) (p_1 ... p_n)^(1/n)

The first factor is the brevity penalty. All these are ratios of sums over images, so the sums determine the score.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import BleuScorer, cook_refs, cook_test

from showattendtell.metrics.bootstrap import Array, SufficientStatistics
from showattendtell.metrics.tokenizers import CaptionPair


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
        corpora = [_score(counts) for counts in copies @ self.by_image]
        return {name: np.array([corpus[name] for corpus in corpora]) for name in corpora[0]}

    def per_image(self) -> dict[str, Array]:
        """Return sentence BLEU-1 to BLEU-4 in percent, with brevity penalty.

        pycocoevalcap adds 1e-15 to the matches, so a caption without a common 4-gram has a BLEU-4 near 0.
        """
        scorer = BleuScorer(n=4)
        scorer.ctest = [
            {"correct": image[:4], "guess": image[4:8], "testlen": image[8], "reflen": [image[9]]}
            for image in self.by_image.tolist()
        ]
        _, scores = scorer.compute_score(option="closest")
        return {f"bleu{n}": 100 * np.array(values) for n, values in enumerate(scores, start=1)}


def measure_bleu(pairs: Sequence[CaptionPair]) -> BleuCounts:
    """Count matching n-grams and lengths of every image."""
    cooked = [cook_test(pair.hypothesis, cook_refs(pair.references), eff="closest") for pair in pairs]
    counts = [[*image["correct"], *image["guess"], image["testlen"], image["reflen"]] for image in cooked]
    return BleuCounts(np.array(counts, dtype=np.float64).reshape(-1, 10))


def _score(counts: Array) -> dict[str, float]:
    """Compute BLEU from a corpus's sums (10,)."""
    *ngrams, length, reference_length = counts.tolist()
    # The scorer sums over its list `ctest`, one entry per image. The sums of the corpus are passed as a single entry.
    scorer = BleuScorer(n=4, special_reflen=reference_length)
    scorer.ctest = [{"correct": ngrams[:4], "guess": ngrams[4:], "testlen": length}]
    scores, _ = scorer.compute_score()
    penalty = 1.0 if length >= reference_length else math.exp(1 - reference_length / max(length, 1e-9))
    return {
        **{f"bleu{n}": 100 * (score / penalty if penalty else 0.0) for n, score in enumerate(scores, start=1)},
        **{f"bleu{n}_with_penalty": 100 * score for n, score in enumerate(scores, start=1)},
        "brevity_penalty": penalty,
        "words": int(length),
        "reference_words": int(reference_length),
    }
