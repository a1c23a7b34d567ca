import math
from collections import Counter

import numpy as np
import pytest

from showattendtell.metrics import ROUGEL
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.cider import measure_cider
from showattendtell.metrics.tokenizers import CaptionPair

CORPUS = [
    CaptionPair("a dog runs on the grass", ["a dog is running on the grass", "the brown dog runs over the grass"]),
    CaptionPair("two men play play", ["two men are playing football", "two men play a game on a field"]),
    CaptionPair("a red car is parked near a tree", ["a red car stands near a tall tree", "the car is parked"]),
    CaptionPair("", ["nothing was said of the dog"]),
]


def test_rouge_l_worked_by_hand():
    """The best precision and the best recall over references, though of different ones: "police killed" is in order in
    the first (2 of 3 and 2 of 2 words), "the gunman" in the second (2 of 3 and 2 of 5)."""
    pair = CaptionPair("police killed gunman", ["police killed", "the gunman police killed today"])
    precision, recall = 2 / 3, 2 / 2
    expected = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)
    assert ROUGEL().measure([pair]).by_image == pytest.approx([100 * expected])


def test_rouge_l_of_what_was_said_is_100_and_of_nothing_in_common_0():
    pairs = [
        CaptionPair("a dog runs", ["a cat", "a dog runs"]),
        CaptionPair("a dog", ["two zebras graze"]),
        CaptionPair("", ["a dog"]),
    ]
    assert ROUGEL().measure(pairs).by_image == pytest.approx([100, 0, 0])


def cider_d(pairs: list[CaptionPair]) -> list[float]:
    """Vedantam et al. 2015, equations 2 to 5 with CIDEr-D's clipping and length penalty, n-gram by n-gram; the length
    is counted in pairs of words, as in the authors' code."""

    def counts(sentence: str, n: int) -> Counter:
        words = sentence.split()
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    def weight(ngram: tuple[str, ...]) -> float:
        seen = sum(any(counts(said, len(ngram))[ngram] for said in pair.references) for pair in pairs)
        return math.log(len(pairs) / max(1, seen))

    def similarity(hypothesis: str, reference: str, n: int) -> float:
        ours, theirs = counts(hypothesis, n), counts(reference, n)
        dot = sum(min(ours[g], theirs[g]) * theirs[g] * weight(g) ** 2 for g in ours)
        norms = [math.sqrt(sum((c[g] * weight(g)) ** 2 for g in c)) for c in (ours, theirs)]
        longer = sum(counts(hypothesis, 2).values()) - sum(counts(reference, 2).values())
        return math.exp(-(longer**2) / (2 * 6**2)) * dot / math.prod(norms) if all(norms) else 0.0

    return [
        10 * np.mean([similarity(pair.hypothesis, said, n) for n in range(1, 5) for said in pair.references])
        for pair in pairs
    ]


def test_cider_is_its_formula():
    expected = cider_d(CORPUS)
    assert expected[0] > 0.1
    assert expected[3] == 0
    np.testing.assert_allclose(measure_cider(CORPUS).by_image, 100 * np.array(expected), rtol=1e-9)


def test_copies_weigh_the_images_scores_which_keep_the_corpus_document_frequencies():
    cider = measure_cider(CORPUS)
    copies = np.array([[2.0, 0.0, 1.0, 1.0]])
    assert cider.scores(copies)["cider"] == pytest.approx(cider.by_image[[0, 0, 2, 3]].mean())
    assert corpus_scores([cider])["cider"] == pytest.approx(cider.by_image.mean())
