"""Judgment files, the treatment of candidates that are references, and Kendall's tau against counts of pairs."""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from repository import SHARED

from showattendtell.data.formats import read_captions
from showattendtell.errors import UserError
from showattendtell.extensions.trust.judgments import (
    CROWDFLOWER,
    EXPERT,
    PUBLISHED,
    Judgment,
    rank_correlation,
    read_judgments,
)

FLICKR8K = SHARED / "flickr8k"
CAPTIONS = {
    "a.jpg": ["A dog runs .", "The dog is fast . "],
    "b.jpg": ["Two men play .", "Men on a field ."],
}
EXPERTS = "a.jpg\tb.jpg#0\t1\t1\t2\na.jpg\ta.jpg#1\t4\t4\t4\nb.jpg\ta.jpg#1\t2\t1\t3\n"
CROWD = "a.jpg\tb.jpg#0\t0\t0\t3\na.jpg\tb.jpg#1\t0.333333\t1\t2\nb.jpg\ta.jpg#1\t1\t4\t0\n"


def write(folder: Path, text: str) -> Path:
    (folder / "judgments.txt").write_text(text)
    return folder / "judgments.txt"


def test_experts_rate_each_caption_three_times(tmp_path: Path):
    rated = read_judgments(write(tmp_path, EXPERTS), CAPTIONS, "keep")
    assert rated.layout == EXPERT
    assert rated.judgments[0] == Judgment("a.jpg", "Two men play .", (1, 1, 2))


def test_a_crowd_gives_the_fraction_of_yes(tmp_path: Path):
    rated = read_judgments(write(tmp_path, CROWD), CAPTIONS)
    assert rated.layout == CROWDFLOWER
    assert [one.ratings for one in rated.judgments] == [(0,), (0.333333,), (1,)]


@pytest.mark.parametrize(("text", "published"), [(EXPERTS, "drop"), (CROWD + "a.jpg\ta.jpg#1\t1\t3\t0\n", "keep")])
@pytest.mark.parametrize("given", [None, "drop", "keep"])
def test_candidates_that_are_references(tmp_path: Path, text: str, published: str, given: str | None):
    """Each file has three or four candidates; one of a.jpg is its own reference."""
    rated = read_judgments(write(tmp_path, text), CAPTIONS, given)
    every = read_judgments(write(tmp_path, text), CAPTIONS, "keep").judgments
    own = ["The dog is fast ."]
    assert (rated.candidates, rated.own) == (given or published, 1)
    assert PUBLISHED[rated.layout] == published
    others = {"a.jpg": ["A dog runs .", "The dog is fast ."], "b.jpg": CAPTIONS["b.jpg"]}
    if rated.candidates == "drop":
        assert rated.judgments == [one for one in every if one.image != "a.jpg" or one.caption not in own]
    else:
        assert len(every) == text.count("\n")
        others["a.jpg"] = [caption for caption in others["a.jpg"] if caption not in own]
    assert rated.references == [others[one.image] for one in rated.judgments]


def test_each_judged_reference_is_removed_once(tmp_path: Path):
    """Of two equal references, one is left if only one was judged, as in the published computation."""
    captions = {"a.jpg": ["A dog .", "A dog .", "A cat ."]}
    judged = "a.jpg\ta.jpg#0\t1\t3\t0\n"
    assert read_judgments(write(tmp_path, judged), captions).references == [["A dog .", "A cat ."]]
    judged += "a.jpg\ta.jpg#1\t1\t3\t0\n"
    assert read_judgments(write(tmp_path, judged), captions).references == [["A cat ."]] * 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("a dog runs\n", "line 1: expected an image, a caption id .* got 'a dog runs'"),
        ("a.jpg\tb.jpg#0\t1\t1\n", "line 1: expected an image"),
        ("a.jpg\tb.jpg#0\tnan\t1\t1\n", "line 1: expected an image"),
        (EXPERTS + "a.jpg\tb.jpg#1\t1\t5\t1\n", "line 4: ratings are 1, 2, 3 or 4, got 5"),
    ],
)
def test_a_damaged_file_is_reported_with_its_line(tmp_path: Path, text: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        read_judgments(write(tmp_path, text), CAPTIONS)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x.jpg\tb.jpg#0\t1\t1\t2\n", r"judges captions of 1 images \(x.jpg\) that the references do not have"),
        ("a.jpg\tx.jpg#0\t1\t1\t2\n", "line 1: the references have no caption x.jpg#0"),
        ("a.jpg\ta.jpg#0\t1\t1\t2\n", "has no caption to score"),
    ],
)
def test_unknown_images_and_captions_are_reported(tmp_path: Path, line: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        read_judgments(write(tmp_path, line), CAPTIONS)


@pytest.mark.skipif(not FLICKR8K.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_flickr8k_has_the_published_number_of_ratings():
    """Hessel et al. 2021: 5,664 candidates with three ratings each."""
    path = FLICKR8K / "judgments/ExpertAnnotations.txt"
    rated = read_judgments(path, read_captions(FLICKR8K / "Flickr8k.token.txt").captions)
    assert (len(rated.judgments), rated.own, rated.candidates) == (5664, 158, "drop")
    assert sum(len(one.ratings) for one in rated.judgments) == 16992


def count(scores: list[float], ratings: list[float]) -> tuple[float, float]:
    """tau-b and tau-c by their definitions, pair by pair."""
    signs = [
        (np.sign(a[0] - b[0]), np.sign(a[1] - b[1])) for a, b in combinations(zip(scores, ratings, strict=True), 2)
    ]
    agreeing = sum(x * y for x, y in signs)
    untied_x, untied_y = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    classes = min(len(set(scores)), len(set(ratings)))
    of_c = len(scores) ** 2 * (classes - 1) / classes / 2
    return 100 * agreeing / math.sqrt(untied_x * untied_y), 100 * agreeing / of_c


def test_a_correlation_worked_by_hand():
    """Pairs of scores 1 2 3 and ratings 1 1 2: one ties in the rating, two are concordant."""
    found = rank_correlation([1, 2, 3], [[1], [1], [2]])
    assert found["tau_b"] == pytest.approx(100 * 2 / math.sqrt(3 * 2))
    assert found["tau_c"] == pytest.approx(100 * 2 * 2 / (9 * 1 / 2))


def test_every_rating_counts_as_a_pair_of_its_own():
    rng = np.random.default_rng(0)
    scores, ratings = rng.integers(0, 8, 12).astype(float), rng.integers(1, 5, (12, 3))
    found = rank_correlation(scores, ratings.tolist())
    flat = [(score, float(rating)) for score, each in zip(scores, ratings, strict=True) for rating in each]
    assert tuple(found.values()) == pytest.approx(count(*map(list, zip(*flat, strict=True))))
