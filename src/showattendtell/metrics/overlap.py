"""ROUGE-L and CIDEr-D of captions, by pycocoevalcap's scorers: means over images."""

from collections.abc import Sequence

import numpy as np
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.rouge.rouge import Rouge

from showattendtell.metrics.measured import Means, Pair


def measure_rouge_l(pairs: Sequence[Pair]) -> Means:
    """Lin 2004: the F-measure of the longest common subsequence, of the best reference."""
    rouge = Rouge()
    return Means("rouge_l", 100 * np.array([rouge.calc_score([pair.hypothesis], pair.references) for pair in pairs]))


def measure_cider(pairs: Sequence[Pair]) -> Means:
    """Vedantam et al. 2015, CIDEr-D; document frequencies are those of all the references given here.

    Published CIDEr of 0.94 is 94.
    """
    scorer = CiderScorer()
    for pair in pairs:
        scorer += tuple(pair)
    _, by_image = scorer.compute_score()
    return Means("cider", 100 * by_image)
