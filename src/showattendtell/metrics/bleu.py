"""Corpus BLEU of captions, by pycocoevalcap's scorer."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pycocoevalcap.bleu.bleu_scorer import BleuScorer

Words = Sequence[str]


class Bleu(NamedTuple):
    """BLEU-1 to BLEU-4 between 0 and 1.

    The paper's figures are `without_penalty`, most later ones are `with_penalty`; they differ where the captions are
    shorter than the closest reference: with = without * exp(1 - reference_length / length).
    """

    with_penalty: tuple[float, ...]
    without_penalty: tuple[float, ...]
    brevity_penalty: float
    length: int
    reference_length: int


def bleu(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> Bleu:
    """Papineni et al. 2002 over the whole corpus, reference length the closest per image.

    Args:
        hypotheses: one caption an image.
        references: the captions that people gave it, at least one each.
    """
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f"as many captions as images are needed, got {len(hypotheses)} for {len(references)}")
    scorer = BleuScorer(n=4)
    for hypothesis, human in zip(hypotheses, references, strict=True):
        scorer += (" ".join(hypothesis), [" ".join(words) for words in human])
    scores, _ = scorer.compute_score(option="closest", verbose=0)
    length, reference_length = int(scorer._testlen), int(scorer._reflen)
    penalty = 1.0 if length >= reference_length else math.exp(1 - reference_length / max(length, 1e-9))
    without = tuple(score / penalty if penalty else 0.0 for score in scores)
    return Bleu(tuple(scores), without, penalty, length, reference_length)
