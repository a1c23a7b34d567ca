"""Corpus BLEU of captions (Papineni et al. 2002) by pycocoevalcap's scorer, with the closest reference length."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import BleuScorer, cook_refs, cook_test

from showattendtell.metrics.bootstrap import Array, SufficientStatistics
from showattendtell.metrics.tokenizers import CaptionPair, Words, pair_up


class Bleu(NamedTuple):
    """BLEU-1 to BLEU-4 between 0 and 1.

    The paper's scores are `without_penalty`, most later ones `with_penalty`; they differ if the captions are shorter
    than the closest reference: with = without * exp(1 - reference_length / length).
    """

    with_penalty: tuple[float, ...]
    without_penalty: tuple[float, ...]
    brevity_penalty: float
    length: int
    reference_length: int

    def figures(self) -> dict[str, float]:
        """Return the scores by their names in results files; BLEU in percent."""
        return {
            **{f"bleu{n}": 100 * score for n, score in enumerate(self.without_penalty, start=1)},
            **{f"bleu{n}_with_penalty": 100 * score for n, score in enumerate(self.with_penalty, start=1)},
            "brevity_penalty": self.brevity_penalty,
            "words": self.length,
            "reference_words": self.reference_length,
        }


@dataclass(frozen=True, eq=False)
class BleuCounts(SufficientStatistics):
    """Counts for BLEU, by image.

    by_image  (N, 10) matching 1- to 4-grams, all 1- to 4-grams, words of the caption and of the closest reference
    """

    by_image: Array

    def figures(self, copies: Array) -> dict[str, Array]:
        corpora = [score_counts(counts).figures() for counts in copies @ self.by_image]
        return {name: np.array([figures[name] for figures in corpora]) for name in corpora[0]}


def bleu(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> Bleu:
    """BLEU of the whole corpus.

    Args:
        hypotheses: one caption per image.
        references: the reference captions of each image, at least one.
    """
    return score_counts(measure_bleu(pair_up(hypotheses, references)).by_image.sum(axis=0))


def measure_bleu(pairs: Sequence[CaptionPair]) -> BleuCounts:
    cooked = [cook_test(pair.hypothesis, cook_refs(pair.references), eff="closest") for pair in pairs]
    counts = [[*image["correct"], *image["guess"], image["testlen"], image["reflen"]] for image in cooked]
    return BleuCounts(np.array(counts, dtype=np.float64).reshape(-1, 10))


def score_counts(counts: Array) -> Bleu:
    """Compute BLEU from a corpus's sums (10,), passed to the scorer as one image."""
    *ngrams, length, reference_length = counts.tolist()
    scorer = BleuScorer(n=4, special_reflen=reference_length)
    scorer.ctest = [{"correct": ngrams[:4], "guess": ngrams[4:], "testlen": length}]
    scores, _ = scorer.compute_score()
    penalty = 1.0 if length >= reference_length else math.exp(1 - reference_length / max(length, 1e-9))
    without = tuple(score / penalty if penalty else 0.0 for score in scores)
    return Bleu(tuple(scores), without, penalty, int(length), int(reference_length))
