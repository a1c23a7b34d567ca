"""A metric of captions."""

from collections.abc import Sequence

import numpy as np

from showattendtell.metrics import CaptionScore
from showattendtell.metrics.bootstrap import ImageMeans
from showattendtell.metrics.tokenizers import CaptionPair


class Brevity(CaptionScore):
    """Words of the caption for 100 words of the shortest reference, the mean over images."""

    def measure(self, pairs: Sequence[CaptionPair]) -> ImageMeans:
        lengths = [
            (len(pair.hypothesis.split()), min(len(words.split()) for words in pair.references)) for pair in pairs
        ]
        return ImageMeans("brevity", 100 * np.array([ours / shortest for ours, shortest in lengths]))
