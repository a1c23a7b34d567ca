import signal
import threading

import numpy as np
import pytest

from showattendtell.metrics import java_scores
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.java import MetricError
from showattendtell.metrics.java_scores import evaluate, measure_meteor
from showattendtell.metrics.tokenizers import CaptionPair

CORPUS = [
    CaptionPair("a dog runs on the grass", ["a dog is running on the grass", "the brown dog runs over the grass"]),
    CaptionPair("two men play football", ["two men play football", "men kick a ball"]),
    CaptionPair("a red car is parked near a tree", ["a red car stands near a tall tree", "a car"]),
    CaptionPair("", ["nothing was said"]),
    CaptionPair("two zebras", ["a sofa"]),
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


def scores(pairs: list[CaptionPair]) -> list[float]:
    """The images' own, 0 to 1."""
    return evaluate(measure_meteor(pairs).by_image)[:-1]


def test_a_score_worked_by_hand():
    """Content words only, all 3 of the caption's and 3 of the reference's 4 match exactly, in 2 chunks; alpha 0.85,
    beta 0.2 and gamma 0.6 are the English parameters (Denkowski and Lavie 2014, table 1)."""
    precision, recall, fragmentation = 3 / 3, 3 / 4, 2 / 3
    mean = 1 / (0.15 / precision + 0.85 / recall)
    expected = mean * (1 - 0.6 * fragmentation**0.2)
    assert scores([CaptionPair("dog cat house", ["dog elephant cat house"])]) == pytest.approx([expected], rel=1e-9)


def test_what_was_said_scores_1_and_nothing_in_common_or_nothing_at_all_0():
    assert scores(CORPUS)[1] == pytest.approx(1)
    assert scores(CORPUS)[3:] == [0, 0]


def test_the_corpus_scores_what_the_jar_makes_of_all_its_images():
    measured = measure_meteor(CORPUS)
    assert corpus_scores([measured])["meteor"] == pytest.approx(100 * evaluate(measured.by_image)[-1], rel=1e-12)


def test_copies_of_images_count_as_if_they_were_repeated():
    measured = measure_meteor(CORPUS)
    copies = np.array([[1, 1, 1, 1, 1], [3, 0, 1, 0, 2], [0, 1, 0, 0, 0], [0, 4, 0, 2, 1], [0, 0, 0, 0, 1]])
    repeated = [evaluate(np.repeat(measured.by_image, times, axis=0))[-1] for times in copies]
    figures = measured.scores(copies.astype(float))["meteor"]
    np.testing.assert_allclose(figures, 100 * np.array(repeated), rtol=1e-12)
    assert figures[2] == pytest.approx(100)


@pytest.mark.parametrize("odd", ODD)
def test_odd_captions_shift_no_line(odd: str):
    plain = CORPUS[0]
    pairs = [plain, CaptionPair(odd, plain.references), plain, CaptionPair(plain.hypothesis, [odd]), plain]
    first, *_, last = measured = measure_meteor(pairs).by_image
    np.testing.assert_array_equal(first, last)
    np.testing.assert_array_equal(first, measured[2])


@pytest.mark.slow
def test_killed_while_it_answers_it_gives_the_same_scores_in_any_country(monkeypatch: pytest.MonkeyPatch):
    expected = scores(CORPUS)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
    process = java_scores.SERVER._process
    process.send_signal(signal.SIGSTOP)  # it shall not answer before it is killed
    killer = threading.Timer(0.3, process.kill)
    killer.start()
    assert scores(CORPUS) == expected
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_what_is_no_answer_is_reported():
    with pytest.raises(MetricError, match="METEOR returned 'Error: specify hypothesis"):
        measure_meteor([CaptionPair("a dog", [])])
