"""ROUGE-L of captions, by pycocoevalcap's scorer."""

from collections.abc import Sequence

import numpy as np
from pycocoevalcap.rouge.rouge import Rouge

from showattendtell.metrics.bootstrap import ImageMeans
from showattendtell.metrics.tokenizers import CaptionPair


def measure_rouge_l(pairs: Sequence[CaptionPair]) -> ImageMeans:
    """Score each image by the F-measure of the longest common subsequence (Lin 2004), using the best reference."""
    rouge = Rouge()
    scores = [rouge.calc_score([pair.hypothesis], pair.references) for pair in pairs]
    return ImageMeans("rouge_l", 100 * np.array(scores))
