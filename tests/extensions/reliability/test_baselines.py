"""Baselines of caption scores against an exhaustive search and pycocoevalcap."""

from itertools import chain

import numpy as np
import pytest
from pycocoevalcap.cider.cider_scorer import CiderScorer

from showattendtell.extensions.reliability.baselines import TypicalCaptions

WORDS = ["a", "dog", "cat", "man", "runs", "sits", "on", "the", "grass", "red", "ball"]


def made_up(images: int, seed: int) -> list[list[list[str]]]:
    rng = np.random.default_rng(seed)
    return [
        [["a", *rng.choice(WORDS[1 : 4 + seed % 5], rng.integers(3, 7)).tolist()] for _ in range(rng.integers(1, 4))]
        for _ in range(images)
    ]


def mean_cider(caption: list[str], references: list[list[list[str]]]) -> float:
    scorer = CiderScorer()
    for said in references:
        scorer += (" ".join(caption), [" ".join(words) for words in said])
    return scorer.compute_score()[0]


@pytest.mark.parametrize("seed", range(5))
def test_no_caption_is_better_for_all_images(seed: int):
    references = made_up(12, seed)
    found = TypicalCaptions(references).best_constant()
    candidates = [list(words) for words in chain.from_iterable(references)]
    best = max(mean_cider(caption, references) for caption in candidates)
    assert list(found) in candidates
    assert mean_cider(list(found), references) == pytest.approx(best)


def test_the_consensus_is_the_caption_that_the_others_resemble():
    said = [["a", "red", "ball"], ["a", "dog", "runs", "on", "grass"], ["the", "dog", "runs", "on", "grass"], ["dog"]]
    typical = TypicalCaptions([said, [["a", "man"]], [["two", "men"]]])
    assert typical.consensus(said) in said[1:3]
    assert typical.consensus([["a", "man"]]) == ["a", "man"]
