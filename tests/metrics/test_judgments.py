"""Correlations of the metrics with human judgments, Flickr8k-Expert (Hodosh et al. 2013), against published ones."""

from itertools import chain

import numpy as np
import pytest
from repository import SHARED
from scipy.stats import kendalltau

from showattendtell.metrics.classes import measure
from showattendtell.metrics.tokenizers import split_sentences
from showattendtell.readers.formats import read_captions

FLICKR8K = SHARED / "flickr8k"

TAU_C = {"bleu1": 32.3, "bleu4": 30.8, "rouge_l": 32.3, "meteor": 41.8, "cider": 43.9}
"""Kendall's tau-c, times 100 (Hessel et al. 2021, Table 1)."""


@pytest.mark.slow
@pytest.mark.skipif(not FLICKR8K.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_metrics_agree_with_human_judgments_as_published():
    captions = read_captions(FLICKR8K / "Flickr8k.token.txt").captions
    words = dict(zip(captions, _in_words(captions.values()), strict=True))
    hypotheses, references, ratings = [], [], []
    for line in (FLICKR8K / "judgments/ExpertAnnotations.txt").read_text().splitlines():
        image, candidate, *rates = line.split("\t")
        source, number = candidate.split("#")
        if words[source][int(number)] not in words[image]:  # a reference of its own image is not a candidate
            hypotheses.append(words[source][int(number)])
            references.append(words[image])
            ratings.append(list(map(int, rates)))
    assert np.shape(ratings) == (5664, 3)
    measured, missing = measure(hypotheses, references, ["bleu", "rouge_l", "meteor", "cider"])
    assert missing == {}
    scores = dict(chain.from_iterable(one.per_image().items() for one in measured.values()))
    taus = {name: kendalltau(scores[name].repeat(3), np.ravel(ratings), variant="c").statistic for name in TAU_C}
    assert {name: 100 * tau for name, tau in taus.items()} == pytest.approx(TAU_C, abs=0.05)


def _in_words(captions):
    """The captions of each image in the words of Stanford's tokenizer, by one run of its program."""
    together = iter(split_sentences(list(chain.from_iterable(captions)), "ptb"))
    return [[next(together) for _ in of_image] for of_image in captions]
