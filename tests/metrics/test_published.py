"""Scores of the reference implementations, and published correlations with human judgments."""

import json
from functools import cache
from itertools import chain, product

import numpy as np
import pytest
from repository import SHARED
from scipy.stats import kendalltau

from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.classes import measure
from showattendtell.metrics.tokenizers import split_sentences
from showattendtell.readers.formats import read_captions

GOLDENS = SHARED / "goldens" / "coco-test"
METRICS = ["bleu", "rouge_l", "cider", "meteor"]
CASES = [*product("cba", ("ptb", "whitespace"))]


@cache
def words(file: str, tokenizer: str) -> list[list[str]]:
    return split_sentences((GOLDENS / file).read_text().splitlines(), tokenizer)


@pytest.mark.slow
@pytest.mark.skipif(not GOLDENS.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
@pytest.mark.parametrize(("name", "tokenizer"), CASES)
def test_captions_of_others_get_the_scores_of_the_reference_implementations(name: str, tokenizer: str):
    golden = json.loads((GOLDENS / "scores.json").read_text())[f"{name}/{tokenizer}"]
    references = list(zip(*(words(f"reference{n}", tokenizer) for n in range(5)), strict=True))
    measured, missing = measure(words(f"hypotheses-{name}.txt", tokenizer), references, METRICS)
    assert missing == {}
    figures = corpus_scores(measured.values())
    expected = {
        **{f"bleu{n}": 100 * score for n, score in enumerate(golden["bleu_without_brevity_penalty"], start=1)},
        **{f"bleu{n}_with_penalty": 100 * score for n, score in enumerate(golden["bleu"], start=1)},
        "rouge_l": 100 * golden["rouge_l"],
        "cider": 100 * golden["cider"],
        "meteor": 100 * golden["meteor"],
        "words": golden["hypothesis_length"],
        "reference_words": golden["reference_length"],
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-4, rel=0)
    assert figures["brevity_penalty"] == pytest.approx(golden["brevity_penalty"], abs=1e-9)


FLICKR8K = SHARED / "flickr8k"

TAU_C = {"bleu1": 32.3, "bleu4": 30.8, "rouge_l": 32.3, "meteor": 41.8, "cider": 43.9}
"""Kendall's tau-c, times 100 (Hessel et al. 2021, Table 1), on Flickr8k-Expert (Hodosh et al. 2013)."""


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
