"""Rewards against pycocoevalcap's scorers, and against what can be counted by hand."""

import math
import random
from collections import defaultdict

import pytest
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider_scorer import CiderScorer

from showattendtell.metrics.diversity import ending_rates
from showattendtell.metrics.ngrams import SentenceCIDErD, bleu4, count_ngrams

WORDS = ["a", "dog", "cat", "runs", "sits", "on", "the", "grass", "red", "ball", "<eos>"]


def invent(rng: random.Random, longest: int = 14) -> list[str]:
    return rng.choices(WORDS, k=rng.randint(1, longest))


def corpus(seed: int, images: int) -> list[list[list[str]]]:
    rng = random.Random(seed)
    return [[invent(rng) for _ in range(rng.randint(1, 5))] for _ in range(images)]


class GivenFrequencies(CiderScorer):
    """pycocoevalcap's, with the document frequencies of other references than those that it scores by."""

    def __init__(self, references: list[list[list[str]]]):
        super().__init__()
        counted = CiderScorer()
        for said in references:
            counted += ("", [" ".join(words) for words in said])
        counted.compute_doc_freq()
        self.document_frequency = defaultdict(float, counted.document_frequency)
        self.images = len(references)

    def score(self, caption: list[str], said: list[list[str]]) -> float:
        self.crefs, self.ctest = [], []
        self.cook_append(" ".join(caption), [" ".join(words) for words in said])
        self.crefs += [[{}]] * (self.images - 1)  # it takes the number of images from their captions
        return self.compute_cider()[0]


@pytest.mark.parametrize("seed", range(3))
def test_cider_is_that_of_pycocoevalcap_with_the_same_document_frequencies(seed: int):
    training, rng = corpus(seed, images=20), random.Random(seed + 100)
    cider, oracle = SentenceCIDErD(training), GivenFrequencies(training)
    for said in [*training[:10], *corpus(seed + 50, images=10)]:
        caption = rng.choice([invent(rng), rng.choice(said)])
        ours = cider.score(
            cider.weigh(count_ngrams(caption)), [cider.weigh(count_ngrams(reference)) for reference in said]
        )
        assert ours == pytest.approx(oracle.score(caption, said), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_bleu_is_that_of_pycocoevalcap_for_a_single_caption(seed: int):
    rng = random.Random(seed)
    for said in corpus(seed, images=30):
        caption = rng.choice([invent(rng), rng.choice(said), rng.choice(said)[:-1] or ["a"]])
        scorer = BleuScorer(" ".join(caption), [" ".join(words) for words in said], n=4)
        _, by_caption = scorer.compute_score(option="closest")
        ours = bleu4(count_ngrams(caption), [count_ngrams(words) for words in said])
        assert ours == pytest.approx(by_caption[3][0], rel=1e-9)


def test_document_frequencies_by_hand():
    """`a dog` stands twice in the first image and once in the second, `dog runs` in the second alone."""
    first, second = [["a", "dog"], ["a", "dog", "sits"]], [["a", "dog", "runs"]]
    words, pairs, *_ = SentenceCIDErD([first, second]).weigh(count_ngrams(["a", "dog", "runs"])).vectors
    assert words == {("a",): 0, ("dog",): 0, ("runs",): pytest.approx(math.log(2))}
    assert pairs == {("a", "dog"): 0, ("dog", "runs"): pytest.approx(math.log(2))}


def test_an_empty_caption_is_worth_nothing():
    cider = SentenceCIDErD(corpus(0, images=5))
    said = count_ngrams(["a", "dog"])
    assert cider.score(cider.weigh(count_ngrams([])), [cider.weigh(said)]) == 0
    assert bleu4(count_ngrams([]), [said]) < 1e-6


def test_endings_by_hand():
    captions = [["a", "dog"], ["a", "dog", "on", "the"], [], ["dogs", "run", "with"]]
    endings = ending_rates(captions, [True, False, True, True])
    assert endings == {"unended": 25.0, "dangling": 50.0, "words": 2.25}
