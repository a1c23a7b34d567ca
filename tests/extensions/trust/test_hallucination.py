"""CHAIR against counts by hand (Rohrbach et al. 2018)."""

import pytest

from showattendtell.data.coco import CATEGORIES
from showattendtell.data.tokenizers import tokenize
from showattendtell.extensions.trust.hallucination import (
    CHAIR,
    coco_names,
    find_hallucinations,
    find_mentions,
    find_nouns,
    merge_synonyms,
    singular,
)
from showattendtell.types import WHOLE, Caption, Phrase

NAMES = coco_names()


def things(sentence: str) -> list[str]:
    return [category for _, category in find_mentions(tokenize(sentence), NAMES)]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("A man eats a hot dog.", ["person", "hot dog"]),
        ("A dog looks at another dog", ["dog", "dog"]),
        ("Women, children and a policeman", ["person", "person", "person"]),
        ("A teddy bear on a bed", ["teddy bear", "bed"]),
        ("A baby elephant next to an adult elephant", ["elephant", "elephant"]),
        ("Baby elephants and a baby", ["elephant", "person"]),
        ("A passenger train on the train tracks", ["train"]),
        ("A batter runs to home plate", ["person"]),
        ("The seat of the toilet is up", ["toilet"]),
        ("A toilet seat and a chair", ["toilet", "chair"]),
        ("Geese and knives on the tables", ["bird", "knife", "dining table"]),
        ("A cell phone and a computer mouse", ["cell phone", "mouse"]),
        ("Grass and sky", []),
        ("", []),
    ],
)
def test_the_objects_of_a_sentence(sentence: str, expected: list[str]):
    assert things(sentence) == expected


def test_every_category_is_found_by_its_name():
    assert len(set(CATEGORIES)) == 80
    for category in CATEGORIES:
        assert things(f"there is a {category} here") == [category]
    assert {thing for thing in NAMES.values() if thing} == set(CATEGORIES)


def test_an_object_is_present_if_it_is_annotated_or_said():
    caption, said = tokenize("a cat and a dog on a couch"), [tokenize("a sofa in a room")]
    mentions, hallucinated = find_hallucinations(caption, said, ["cat"], NAMES)
    assert [category for _, category in mentions] == ["cat", "dog", "couch"]
    assert hallucinated == [(4, "dog")]


HYPOTHESES = ["a man holds a dog and a dog", "a cat on a bench", "green grass", "a puppy runs"]
REFERENCES = [["a person stands"], ["a kitten sits", "a cat"], ["a dog"], ["a dog", "a ball"]]
ANNOTATED = [["person"], ["cat", "chair"], [], []]


def test_rates_worked_by_hand():
    """Mentions: person, dog, dog | cat, bench | none | dog. Hallucinated: dog, dog | bench."""
    chair = CHAIR()
    chair.update(HYPOTHESES[:2], REFERENCES[:2], ANNOTATED[:2])
    chair.update(HYPOTHESES[2:], REFERENCES[2:])
    found = {name: figure.item() for name, figure in chair.compute().items()}
    assert found == pytest.approx({"chair_i": 100 * 3 / 6, "chair_s": 100 * 2 / 4, "chair_mentions": 6})


def test_planted_hallucinations_are_all_found():
    """In captions that mention what their references do, an object of every other category."""
    for category in CATEGORIES:
        said = tokenize("a giraffe stands" if category != "giraffe" else "a zebra stands")
        planted = (*said, *tokenize(f"with a {category}"))
        mentions, hallucinated = find_hallucinations(planted, [said], [], NAMES)
        assert len(mentions) == 2
        assert [category for _, category in hallucinated] == [category]


def caption(sentence: str, *nouns: str) -> Caption:
    words = tokenize(sentence)
    return Caption(words, tuple(Phrase(words.index(noun), (WHOLE,)) for noun in nouns))


ANNOTATED_CAPTIONS = [
    caption("two dogs run in the snow", "dogs"),
    caption("a dog watches a boy", "dog", "boy"),
    caption("a boy with a watch", "boy", "watch"),
    caption("men watch a game", "men"),
    caption("boys watch one of the dogs", "boys", "one", "dogs"),
]


def test_nouns_are_the_words_that_mostly_name_something():
    nouns = find_nouns(ANNOTATED_CAPTIONS, least=1)
    assert set(nouns.values()) == {"dog", "boy", "man"}
    assert {" ".join(name) for name in nouns} == {"dog", "dogs", "boy", "boys", "man", "men"}
    assert set(find_nouns(ANNOTATED_CAPTIONS, least=3).values()) == {"dog", "boy"}


def test_nouns_of_the_same_thing_are_one_object():
    nouns = {("boy",): "boy", ("shirt",): "shirt", ("tshirt",): "tshirt", ("puppy",): "puppy", ("fence",): "fence"}
    merged = merge_synonyms(nouns)
    assert list(merged.values()) == ["person", "shirt", "shirt", "dog", "fence"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("glasses", "glass"), ("pants", "pants"), ("people", "person"), ("knives", "knife"), ("boxes", "box")],
)
def test_the_singular_of_a_noun(word: str, expected: str):
    assert singular(word, {"glass", "box", "knive"}) == expected
