from pathlib import Path
from typing import Any

import pytest

from showattendtell.errors import UserError
from showattendtell.loading.matching import MatchedCaptions, in_words, match
from showattendtell.readers.formats import PLAIN
from showattendtell.text.parsing import CaptionFile

WRITTEN, OTHER, REFERENCES = Path("written.json"), Path("other.json"), Path("people.json")
SAID = {"a.jpg": ["A dog .", "It barks !"], "b.jpg": ["Two cats ."]}


def captions(said: dict[str, Any], **fields: Any) -> CaptionFile:
    return CaptionFile(
        "made up", {image: [one] if isinstance(one, str) else one for image, one in said.items()}, **fields
    )


def matched(
    written: CaptionFile, people: CaptionFile, split: str | None = None, partial: bool = False
) -> MatchedCaptions[str]:
    return match({WRITTEN: written}, {REFERENCES: people}, split, partial)


def plain(*lines: str) -> CaptionFile:
    return CaptionFile(PLAIN, {f"line {number}": [line] for number, line in enumerate(lines, start=1)})


def test_captions_meet_the_references_of_their_image_in_the_order_of_the_references():
    corpus = matched(captions({"b.jpg": "cats", "a.jpg": "a dog"}), captions(SAID))
    assert corpus == MatchedCaptions(
        ["a.jpg", "b.jpg"], [["A dog .", "It barks !"], ["Two cats ."]], {WRITTEN: ["a dog", "cats"]}, ()
    )


NUMBERED = {"5": "a.jpg", "7": "b.jpg"}


@pytest.mark.parametrize(
    ("written", "people"),
    [
        (captions({"5": "a dog", "7": "cats"}), captions(SAID, aliases=NUMBERED)),
        (captions({"5": "a dog", "b.jpg": "cats"}), captions(SAID, aliases=NUMBERED)),
        (captions({"a.jpg": "a dog", "b.jpg": "cats"}, aliases=NUMBERED), captions({"5": SAID["a.jpg"], "7": ["c"]})),
    ],
)
def test_an_image_is_one_whether_it_is_called_by_its_name_or_its_number(written: CaptionFile, people: CaptionFile):
    corpus = matched(written, people)
    assert (corpus.images, corpus.hypotheses[WRITTEN]) == (["a.jpg", "b.jpg"], ["a dog", "cats"])


def test_an_image_is_one_whether_it_is_called_by_its_name_or_its_path():
    people = captions({"a.jpg": ["A dog ."], "rome/a.jpg": ["A cat ."], "b.jpg": ["Two cats ."]})
    corpus = matched(captions({"photos/rome/a.jpg": "cat", "/photos/a.jpg": "dog", "b.jpg": "cats"}), people)
    assert corpus.hypotheses[WRITTEN] == ["dog", "cat", "cats"]
    with pytest.raises(UserError, match=r"captions 1 image \(photos/ra\.jpg\) that the references do not have"):
        matched(captions({"photos/ra.jpg": "cat"}), people)


@pytest.mark.parametrize(
    ("written", "people"),
    [
        ("1000_ab", "1000_ab.jpg"),
        ("/content/images/1000_ab.JPG", "1000_ab.jpg"),
        ("C:\\images\\1000_ab.jpg", "1000_ab"),
        ("42", "COCO_val2014_000000000042.jpg"),
        ("000000000042.jpg", "COCO_val2014_000000000042.jpg"),
        ("COCO_val2014_000000000042", "COCO_val2014_000000000042.jpg"),
    ],
)
def test_an_image_is_one_in_the_ids_that_other_tools_write(written: str, people: str):
    corpus = matched(
        captions({written: "a dog"}), captions({people: ["A dog ."], "COCO_val2014_43.jpg": []}), None, True
    )
    assert (corpus.images, corpus.hypotheses[WRITTEN]) == ([people], ["a dog"])


def test_several_reference_files_are_put_together():
    first, second = captions({"a.jpg": "A dog ."}), captions({"5": "It barks !", "7": "Two cats ."}, aliases=NUMBERED)
    written = captions({"a.jpg": "a dog", "b.jpg": "cats"})
    corpus = match({WRITTEN: written}, {REFERENCES: first, OTHER: second}, None, False)
    assert dict(zip(corpus.images, corpus.references, strict=True)) == SAID


def test_the_line_of_one_plain_file_is_that_of_another():
    files = {REFERENCES: plain("A dog .", "Cats ."), OTHER: plain("It barks !", "Two cats .")}
    corpus = match({WRITTEN: plain("a dog", "cats")}, files, None, False)
    assert corpus.references == [["A dog .", "It barks !"], ["Cats .", "Two cats ."]]
    assert corpus.hypotheses == {WRITTEN: ["a dog", "cats"]}


def test_ids_that_do_not_match_are_reported_in_both_directions_with_the_first_few():
    written = captions({f"{number}.png": "a dog" for number in range(1234)})
    with pytest.raises(UserError) as error:
        matched(written, captions(SAID))
    strange, lacking, hint = str(error.value).split("; ")
    assert strange == ("written.json captions 1,234 images (0.png, 1.png, 2.png, ...) that the references do not have")
    assert lacking == "written.json has no caption for 2 images (a.jpg, b.jpg) of the references"
    assert "partial=true" in hint


def test_a_partial_corpus_has_the_images_that_every_file_captions():
    files = {
        WRITTEN: captions({"a.jpg": "a dog", "b.jpg": "cats"}),
        OTHER: captions({"b.jpg": "two cats", "a.jpg": []}),
    }
    corpus = match(files, {REFERENCES: captions(SAID)}, None, partial=True)
    assert corpus == MatchedCaptions(
        ["b.jpg"],
        [["Two cats ."]],
        {WRITTEN: ["cats"], OTHER: ["two cats"]},
        ("1 of 2 images are left out: not every file captions them",),
    )


SPLIT = captions({**SAID, "c.jpg": "A tree ."}, split_of={"c.jpg": "train", "b.jpg": "test", "a.jpg": "test"})


def test_a_split_s_images_are_those_of_the_references_that_are_in_it():
    corpus = matched(captions({"a.jpg": "a dog", "b.jpg": "cats"}), SPLIT, split="test")
    assert corpus.images == ["a.jpg", "b.jpg"]


DOG = {"a.jpg": ["A dog ."]}
REPORTED = {
    "line i must be image i .*: people.json has 2, written.json has 1": (
        {WRITTEN: plain("a dog")},
        plain("A dog .", "Cats ."),
    ),
    r"written.json captions 1 image \(line 1\) that the references do not have": (
        {WRITTEN: plain("a dog")},
        captions(DOG, aliases={"1": "a.jpg"}),
    ),
    r"written.json captions 1 image \(1\) that the references do not have": (
        {WRITTEN: captions({"1": "a dog"})},
        plain("A dog ."),
    ),
    r"more than one caption for 1 image \(a.jpg\); only one": (
        {WRITTEN: captions({"a.jpg": ["a dog", "dogs"], "b.jpg": "cats"})},
        captions(SAID),
    ),
    r"has more than one caption for 1 image \(a.jpg\)": (
        {WRITTEN: captions({"a.jpg": "a dog", "5": "dogs", "b.jpg": "cats"})},
        captions(SAID, aliases=NUMBERED),
    ),
    r"written.json captions 1 image \(c\).*other.json has no caption for 1 image": (
        {WRITTEN: captions({"a.jpg": "a", "b.jpg": "b", "c": "c"}), OTHER: captions({"a.jpg": ""})},
        captions(SAID),
    ),
}


@pytest.mark.parametrize("sentence", REPORTED)
def test_files_that_do_not_match_are_reported(sentence: str):
    files, people = REPORTED[sentence]
    with pytest.raises(UserError, match=sentence):
        match(files, {REFERENCES: people}, None, partial=False)


@pytest.mark.parametrize(
    ("other", "split", "words"),
    [
        ({}, None, "other.json holds no references, as results of evaluate do; give them as references="),
        ({"a.jpg": ["Cats ."]}, None, "written.json and other.json hold different references"),
        (DOG, "test", "split=test chooses among the images of references="),
    ],
)
def test_results_that_hold_no_references_for_both_are_reported(other: dict[str, Any], split: str | None, words: str):
    written = captions({"a.jpg": "a"}, references=DOG)
    with pytest.raises(UserError, match=words):
        match({WRITTEN: written, OTHER: captions({"a.jpg": "a"}, references=other)}, {}, split, False)


def test_words_are_split_by_the_tokenizer_and_stay_with_their_image():
    corpus = MatchedCaptions(
        ["a", "b"], [["A dog .", "Dogs !"], ["Cats ."]], {WRITTEN: ["a dog", "cats"], OTHER: ["Dog", "Cat"]}
    )
    words = in_words(corpus, "plain")
    assert words.references == [[["a", "dog"], ["dogs"]], [["cats"]]]
    assert words.hypotheses == {WRITTEN: [["a", "dog"], ["cats"]], OTHER: [["dog"], ["cat"]]}
    assert in_words(corpus, "whitespace").references == [[["A", "dog", "."], ["Dogs", "!"]], [["Cats", "."]]]


def test_a_reference_without_words_is_passed_over_and_a_caption_without_words_stays():
    corpus = MatchedCaptions(
        ["a", "b"], [["A dog .", "..."], ["", "Cats ."]], {WRITTEN: ["", "cats"]}, ("a first note",)
    )
    words = in_words(corpus, "plain")
    assert words.references == [[["a", "dog"]], [["cats"]]]
    assert words.hypotheses == {WRITTEN: [[], ["cats"]]}
    assert words.notes == (
        "a first note",
        "references without words are skipped, of 2 images (a, b)",
        "written.json: captions without words score 0, of 1 image (a)",
    )


@pytest.mark.parametrize("said", [[], ["..."], ["", " "]])
def test_an_image_without_a_reference_is_reported(said: list[str]):
    with pytest.raises(UserError, match=r"1 image \(b\) without a reference that has words"):
        in_words(MatchedCaptions(["a", "b"], [["A dog ."], said], {WRITTEN: ["a dog", "cats"]}), "plain")
