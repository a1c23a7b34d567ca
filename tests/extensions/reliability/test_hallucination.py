"""CHAIR against counts by hand (Rohrbach et al. 2018)."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from showattendtell.extensions.reliability.hallucination import (
    CHAIR,
    HallucinationMetric,
    coco_names,
    find_hallucinations,
    find_mentions,
    find_nouns,
    merge_synonyms,
)
from showattendtell.inference.evaluator import EvaluationRun, RunScores
from showattendtell.loading.models import LoadedModel
from showattendtell.readers.coco import CATEGORIES, mark_instances, plural
from showattendtell.text.tokenizers import CharacterTokenizer, PlainTokenizer, Tokenizer, tokenize
from showattendtell.text.vocabulary import SPECIAL, Vocabulary
from showattendtell.types import WHOLE, Caption, Dataset, Example, Phrase

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
    assert len(set(CATEGORIES)) == 80
    assert {thing for thing in NAMES.values() if thing} == set(CATEGORIES)
    for category in CATEGORIES:
        said = tokenize("a giraffe stands" if category != "giraffe" else "a zebra stands")
        planted = (*said, *tokenize(f"with a {category}"))
        mentions, hallucinated = find_hallucinations(planted, [said], [], NAMES)
        assert len(mentions) == 2
        assert [category for _, category in hallucinated] == [category]


def caption(sentence: str, *nouns: str) -> Caption:
    words = tokenize(sentence)
    return Caption(words, tuple(Phrase(words.index(noun), (WHOLE,)) for noun in nouns))


def test_nouns_are_the_words_that_mostly_name_something():
    annotated_captions = [
        caption("two dogs run in the snow", "dogs"),
        caption("a dog watches a boy", "dog", "boy"),
        caption("a boy with a watch", "boy", "watch"),
        caption("men watch a game", "men"),
        caption("boys watch one of the dogs", "boys", "one", "dogs"),
    ]
    nouns = find_nouns(4 * annotated_captions)
    assert set(nouns.values()) == {"dog", "boy"}
    assert {" ".join(name) for name in nouns} == {"dog", "dogs", "boy", "boys"}


@pytest.mark.parametrize("noun", ["glass", "woman", "person", "knife", "box", "puppy", "skis"])
def test_a_noun_and_its_plural_are_one(noun: str):
    said = [caption(form, form) for form in (noun, plural(noun))]
    assert find_nouns(10 * said) == {(noun,): noun, (plural(noun),): noun}


def test_nouns_of_the_same_thing_are_one_object():
    nouns = {("boy",): "boy", ("shirt",): "shirt", ("tshirt",): "tshirt", ("puppy",): "puppy", ("fence",): "fence"}
    merged = merge_synonyms(nouns)
    assert list(merged.values()) == ["person", "shirt", "shirt", "dog", "fence"]


def measure(dataset: Dataset, written: dict[str, list[Any]], vocabulary: Vocabulary) -> RunScores:
    """What `evaluate` measures of a data set's test images."""
    none: Any = None
    model: Any = LoadedModel(SimpleNamespace(vocabulary=vocabulary), none, {})  # of a model it reads the vocabulary
    run = EvaluationRun([], [], [model], [], dataset, "test", none, (), "plain", 0)
    return HallucinationMetric().measure(run, written, 0)


def scored(dataset: Dataset, written: dict[str, list[Any]]) -> dict[str, Any]:
    scores = measure(dataset, written, Vocabulary(SPECIAL))
    assert scores.missing == {}
    return scores.figures


def test_nouns_that_no_reference_names_are_hallucinated():
    said = (caption("a dog and a ball", "dog", "ball"), caption("the dog", "dog"))
    examples = [Example(f"{number}.png", "", said) for number in range(10)]
    train = tuple(example._replace(captions=(caption("a cat", "cat"),)) for example in examples)
    dataset = Dataset("made up", {"train": train, "test": tuple(examples)})
    written = {example.image: [["a", "puppy", "and", "dogs"]] for example in examples}
    written |= {"3.png": [["a", "cat", "and", "a", "dog"]], "5.png": [["a", "dog", "on", "a", "kite"]]}
    figures = scored(dataset, written)
    assert (figures["chair_objects"], figures["chair_images"]) == ("nouns", 10)
    assert figures["hallucinations"] == {"3.png": ["cat"]}
    assert (figures["chair_mentions"], figures["chair_i"], figures["chair_s"]) == (11, pytest.approx(100 / 11), 10)


def test_images_with_annotated_objects_are_scored_by_categories(tmp_path: Path):
    """The second image is in no file of instances; the third shows a cat that no caption mentions."""
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 200, "height": 100} for n in (0, 2)],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"image_id": 0, "category_id": 18, "bbox": [0, 0, 9, 9], "iscrowd": 0},
            {"image_id": 2, "category_id": 17, "bbox": [0, 0, 9, 9], "iscrowd": 1},
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(content))
    examples = [Example(f"{n}.png", "", (caption("a man"),)) for n in range(3)]
    dataset = mark_instances(Dataset("coco", {"test": tuple(examples)}), tmp_path / "instances.json")
    assert [example.objects for example in dataset.split("test")] == [("dog",), None, ("cat",)]
    written = {
        "0.png": [tokenize("a man with two puppies")],
        "1.png": [tokenize("a zebra")],
        "2.png": [tokenize("a kitten looks at a dog and a person")],
    }
    figures = scored(dataset, written)
    assert (figures["chair_objects"], figures["chair_images"]) == ("coco", 2)
    assert figures["hallucinations"] == {"2.png": ["dog"]}
    assert (figures["chair_mentions"], figures["chair_i"], figures["chair_s"]) == (5, pytest.approx(20), 50)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [(PlainTokenizer(), "dataset.entities=entities.zip"), (CharacterTokenizer(), "in the words of tokenizer=plain")],
)
def test_what_cannot_be_scored_has_a_reason(tokenizer: Tokenizer, reason: str):
    dataset = Dataset("made up", {"test": (Example("0.png", "", (caption("a dog"),)),)})
    scores = measure(dataset, {"0.png": [["a", "dog"]]}, Vocabulary(SPECIAL, tokenizer))
    assert scores.figures == {}
    assert reason in scores.missing["chair"]
