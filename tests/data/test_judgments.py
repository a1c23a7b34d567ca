"""Judgment files: the layouts of Flickr8k and Composite, and what is wrong with damaged ones."""

from pathlib import Path

import pytest
from repository import SHARED

from showattendtell.data.formats import read_captions
from showattendtell.data.judgments import (
    COMPOSITE,
    CROWDFLOWER,
    EXPERT,
    Judgment,
    find_rated,
    read_judgments,
)
from showattendtell.errors import UserError

FLICKR8K = SHARED / "flickr8k"
CAPTIONS = {
    "a.jpg": ["A dog runs .", "The dog is fast . "],
    "b.jpg": ["Two men play .", "Men on a field ."],
}
EXPERTS = "a.jpg\tb.jpg#0\t1\t1\t2\na.jpg\ta.jpg#1\t4\t4\t4\nb.jpg\ta.jpg#1\t2\t1\t3\n"
CROWD = "a.jpg\tb.jpg#0\t0\t0\t3\na.jpg\tb.jpg#1\t0.333333\t1\t2\nb.jpg\ta.jpg#1\t1\t4\t0\n"
TABLE = """"HITId";"Input.image_url";"Input.text1";"Input.text2";"Answer.Q1Answer";"Answer.Q2Answer"
x1;http://example.org/pictures/a.jpg;A dog runs .;"a cat; or a dog";5;2
x2;http://example.org/pictures/b.jpg;two men;;4;
;;;;;
"""


def write(folder: Path, text: str) -> Path:
    (folder / "judgments.txt").write_text(text)
    return folder / "judgments.txt"


def test_experts_rate_each_caption_three_times(tmp_path: Path):
    path = write(tmp_path, EXPERTS)
    file = read_judgments(path)
    assert file.layout == EXPERT
    assert file.judgments[0] == Judgment(f"{path}, line 1", "a.jpg", "b.jpg#0", (1, 1, 2))


def test_a_crowd_gives_the_fraction_of_yes(tmp_path: Path):
    file = read_judgments(write(tmp_path, CROWD))
    assert file.layout == CROWDFLOWER
    assert [one.ratings for one in file.judgments] == [(0,), (0.333333,), (1,)]


def test_a_row_of_composite_has_several_captions(tmp_path: Path):
    file = read_judgments(write(tmp_path, TABLE))
    assert file.layout == COMPOSITE
    found = [(one.image, one.candidate, one.ratings) for one in file.judgments]
    assert found == [
        ("a.jpg", "A dog runs .", (5,)),
        ("a.jpg", "a cat; or a dog", (2,)),
        ("b.jpg", "two men", (4,)),
    ]


def test_references_of_the_own_image_are_left_out(tmp_path: Path):
    path = write(tmp_path, EXPERTS)
    rated = find_rated(read_judgments(path), path, CAPTIONS, {})
    assert (rated.images, rated.candidates) == (["a.jpg", "b.jpg"], ["Two men play .", "The dog is fast ."])
    assert (rated.ratings, rated.left_out) == ([(1, 1, 2), (2, 1, 3)], 1)
    assert rated.references == [CAPTIONS["a.jpg"], CAPTIONS["b.jpg"]]


def test_a_written_candidate_that_is_a_reference_is_left_out_too(tmp_path: Path):
    path = write(tmp_path, TABLE)
    rated = find_rated(read_judgments(path), path, CAPTIONS, {})
    assert (rated.candidates, rated.left_out) == (["a cat; or a dog", "two men"], 1)


def test_an_image_may_have_a_second_name(tmp_path: Path):
    path = write(tmp_path, "7\tb.jpg#0\t1\t1\t2\n")
    assert find_rated(read_judgments(path), path, CAPTIONS, {"7": "a.jpg"}).references == [CAPTIONS["a.jpg"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a dog runs\n", "line 1: expected an image, a caption id .* got 'a dog runs'"),
        ("a.jpg\tb.jpg#0\t1\t1\n", "line 1: expected an image"),
        ("a.jpg\tb.jpg#0\t1\t1\t1\t1\n", "line 1: expected an image"),
        ("a.jpg\tb.jpg\t1\t1\t1\n", "line 1: expected an image"),
        ("a.jpg\tb.jpg#0\t1\tgood\t1\n", "line 1: expected an image"),
        ("a.jpg\tb.jpg#0\tnan\t1\t1\n", "line 1: expected an image"),
        (EXPERTS + "a.jpg\tb.jpg#1\t1\t5\t1\n", "line 4: ratings are 1, 2, 3 or 4, got 5"),
        (EXPERTS + "a.jpg\tb.jpg#1\t0\t1\t1\n", "line 4: ratings are 1, 2, 3 or 4, got 0"),
        ("a.jpg\tb.jpg#1\t5\t1\t1\n", "line 1: ratings are 1, 2, 3 or 4, got 5"),
        (EXPERTS + "a.jpg\tb.jpg#1\t2.5\t1\t1\n", "got 2.5"),
        (CROWD + "a.jpg\tb.jpg#1\t0.9\t1\t2\n", "line 4: the fraction of yes, 0.9, does not fit 1 yes and 2 no"),
        (TABLE.replace(";5;2", ";6;2"), "line 2: ratings are 1, 2, 3, 4 or 5, got 6"),
        (TABLE.replace("Answer.Q", "Other.Q"), "line 1: expected the columns Input.image_url, Input.text1"),
        (TABLE.replace(";", ","), "line 1: expected the columns"),
    ],
)
def test_a_damaged_file_is_reported_with_its_line(tmp_path: Path, text: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        read_judgments(write(tmp_path, text))


def test_a_missing_file_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match="nowhere.txt does not exist"):
        read_judgments(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x.jpg\tb.jpg#0\t1\t1\t2\n", r"judges captions of 1 images \(x.jpg\) that the references do not have"),
        ("a.jpg\tx.jpg#0\t1\t1\t2\n", "line 1: the references have no caption x.jpg#0"),
        ("a.jpg\tb.jpg#2\t1\t1\t2\n", "line 1: the references have no caption b.jpg#2"),
        ("a.jpg\ta.jpg#0\t1\t1\t2\n", "has no caption that is not a reference of its own image"),
    ],
)
def test_unknown_images_and_captions_are_reported(tmp_path: Path, line: str, sentence: str):
    path = write(tmp_path, line)
    with pytest.raises(UserError, match=sentence):
        find_rated(read_judgments(path), path, CAPTIONS, {})


@pytest.mark.skipif(not FLICKR8K.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_flickr8k_has_the_published_number_of_ratings():
    """Hessel et al. 2021: 5,664 candidates with three ratings each."""
    path = FLICKR8K / "judgments/ExpertAnnotations.txt"
    file = read_judgments(path)
    rated = find_rated(file, path, read_captions(FLICKR8K / "Flickr8k.token.txt").captions, {})
    assert (len(file.judgments), len(rated.candidates), rated.left_out) == (5822, 5664, 158)
    assert sum(map(len, rated.ratings)) == 16992
