import math

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from torchmetrics.functional.text import bleu_score

from showattendtell.metrics.bleu import measure_bleu
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.tokenizers import pair_up

HYPOTHESES = ["a dog runs on the grass", "two men play", "a red car is parked near a tree"]
REFERENCES = [
    ["a dog is running on the grass", "the brown dog runs over the grass"],
    ["two men are playing football", "two men play a game on a field"],
    ["a red car stands near a tall tree", "the red car is parked near a house"],
]


def split(lines):
    return [line.split() for line in lines]


def bleu(hypotheses, references) -> dict[str, float]:
    return corpus_scores([measure_bleu(pair_up(hypotheses, references))])


def test_one_sentence_worked_by_hand():
    scores = bleu([["a", "b", "c", "x"]], [[["a", "b", "c", "d", "e"]]])
    penalty = math.exp(1 - 5 / 4)
    precisions = [3 / 4, 2 / 3, 1 / 2]
    for n in range(1, 4):
        without = math.prod(precisions[:n]) ** (1 / n)
        assert scores[f"bleu{n}"] / 100 == pytest.approx(without, abs=1e-6)
        assert scores[f"bleu{n}_with_penalty"] / 100 == pytest.approx(without * penalty, abs=1e-6)
    assert (scores["words"], scores["reference_words"]) == (4, 5)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_torchmetrics_gives_the_same_with_the_penalty(n: int):
    ours = bleu(split(HYPOTHESES), [split(lines) for lines in REFERENCES])[f"bleu{n}_with_penalty"]
    assert ours / 100 == pytest.approx(bleu_score(HYPOTHESES, REFERENCES, n_gram=n).item(), abs=1e-6)


def sentences() -> tuple[list[list[str]], list[list[list[str]]]]:
    return split(HYPOTHESES), [split(lines) for lines in REFERENCES]


def test_the_corpus_has_the_scores_that_pycocoevalcap_gives_it():
    scorer = BleuScorer(n=4)
    for caption, people_said in zip(HYPOTHESES, REFERENCES, strict=True):
        scorer += (caption, people_said)
    expected, _ = scorer.compute_score(option="closest")
    figures = bleu(*sentences())
    assert [figures[f"bleu{n}_with_penalty"] for n in range(1, 5)] == pytest.approx([100 * b for b in expected])
    assert (figures["words"], figures["reference_words"]) == (scorer._testlen, scorer._reflen)


def test_copies_of_images_count_as_if_they_were_repeated():
    hypotheses, references = sentences()
    copies = np.array([[1, 1, 1], [2, 0, 3], [0, 1, 0]])
    figures = measure_bleu(pair_up(hypotheses, references)).scores(copies.astype(float))
    for row, times in enumerate(copies):
        chosen = np.repeat(np.arange(3), times)
        repeated = bleu([hypotheses[image] for image in chosen], [references[image] for image in chosen])
        for name, figure in repeated.items():
            assert figures[name][row] == pytest.approx(figure, rel=1e-12)


def test_a_corpus_of_empty_captions_scores_nothing():
    figures = bleu([[], []], [[["a", "b"]], [["c"]]])
    assert figures["bleu4_with_penalty"] == figures["brevity_penalty"] == figures["words"] == 0
