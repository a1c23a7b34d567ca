import numpy as np
import pytest

from showattendtell.metrics.bootstrap import Array, corpus_scores
from showattendtell.metrics.java import MetricError, run_java
from showattendtell.metrics.java_scores import METEOR_JAR, MeteorCounts, evaluate, measure_meteor
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
COPIES = [[1, 1, 1, 1, 1, 1], [3, 0, 1, 0, 2, 0], [0, 1, 0, 0, 0, 0], [0, 4, 0, 2, 1, 1], [0, 0, 0, 0, 1, 0]]


@pytest.fixture(scope="module")
def all_measured() -> Array:
    """Statistics of the corpus and of odd captions and references, by one run of the jar: its tables take 8 seconds."""
    plain, pairs = CORPUS[0], [*CORPUS]
    for odd in ODD:
        pairs += [CaptionPair(odd, plain.references), plain, CaptionPair(plain.hypothesis, [odd]), plain]
    return measure_meteor(pairs).by_image


@pytest.fixture(scope="module")
def measured(all_measured: Array) -> MeteorCounts:
    return MeteorCounts(all_measured[: len(CORPUS)])


def test_a_score_worked_by_hand(measured: MeteorCounts):
    """Content words only, all 3 of the caption's and 3 of the reference's 4 match exactly, in 2 chunks; alpha 0.85,
    beta 0.2 and gamma 0.6 are the English parameters (Denkowski and Lavie 2014, table 1)."""
    precision, recall, fragmentation = 3 / 3, 3 / 4, 2 / 3
    mean = 1 / (0.15 / precision + 0.85 / recall)
    expected = mean * (1 - 0.6 * fragmentation**0.2)
    assert evaluate(measured.by_image)[5] == pytest.approx(expected, rel=1e-9)


def test_what_was_said_scores_1_and_nothing_in_common_or_nothing_at_all_0(measured: MeteorCounts):
    perfect, _, nothing, other = measured.per_image()["meteor"][1:5]
    assert (perfect, nothing, other) == (100, 0, 0)


def test_odd_captions_shift_no_line(all_measured: Array):
    for plain in all_measured[len(CORPUS) + 1 :: 2]:
        np.testing.assert_array_equal(plain, all_measured[0])


@pytest.mark.slow
def test_scores_of_images_and_of_resampled_corpora_are_the_jars_bit_by_bit(measured: MeteorCounts):
    def by_jar(statistics: Array) -> list[float]:
        """Return the score of each image and of all together."""
        line = " ||| ".join(["EVAL", *(" ".join(map(str, row)) for row in statistics.tolist())])
        options = ["-jar", str(METEOR_JAR), "-", "-", "-stdio", "-l", "en", "-norm"]
        return [100 * float(answer) for answer in run_java("METEOR", options, 600, f"{line}\n").splitlines()]

    *images, corpus = by_jar(measured.by_image)
    assert measured.per_image()["meteor"].tolist() == images
    assert corpus_scores([measured]) == {"meteor": corpus}
    repeated = [by_jar(np.repeat(measured.by_image, times, axis=0))[-1] for times in COPIES]
    assert measured.scores(np.array(COPIES, dtype=float))["meteor"].tolist() == repeated


@pytest.mark.slow
def test_what_is_no_answer_is_reported():
    with pytest.raises(MetricError, match="METEOR returned .*Error: specify hypothesis"):
        measure_meteor([CaptionPair("a dog", [])])
