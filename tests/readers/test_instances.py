import json
from pathlib import Path
from typing import Any

import pytest
from repository import SHARED

from showattendtell.readers.coco import SYNONYMS, mark_instances, names_of
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import Box, Caption, Dataset, Example, Phrase

FOLDER = SHARED / "coco_mini" / "annotations"
CATEGORIES = [
    {"id": 1, "name": "person", "supercategory": "person"},
    {"id": 10, "name": "traffic light", "supercategory": "outdoor"},
    {"id": 18, "name": "dog", "supercategory": "animal"},
    {"id": 58, "name": "hot dog", "supercategory": "food"},
]
IMAGES = [
    {"id": 7, "file_name": "000000000007.jpg", "width": 200, "height": 100},
    {"id": 8, "file_name": "000000000008.jpg", "width": 10, "height": 10},
]


def thing(category: int, *bbox: float, image: int = 7, crowd: int = 0) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": bbox, "iscrowd": crowd, "area": 5.5, "id": 1}


THINGS = [
    thing(1, 0, 0, 100, 50),
    thing(1, 150, 25, 50, 75),
    thing(1, 0, 0, 200, 100, crowd=1),
    thing(18, 20, 10, 0, 30),
    thing(10, 190, 90, 40, 40),
    thing(58, 0, 0, 10, 10),
    thing(18, 1, 1, 2, 2, image=8),
]
PEOPLE = (Box(0, 0, 0.5, 0.5), Box(0.75, 0.25, 1, 1))


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({"images": IMAGES, "categories": CATEGORIES, "annotations": THINGS, **changes}))
    return path


def example(*sentences: str, image: str = "000000000007.jpg") -> Example:
    return Example(image, image, tuple(Caption(tokenize(sentence)) for sentence in sentences))


def mark(path: Path, *examples: Example) -> tuple[Example, ...]:
    """The examples, marked as a split of a data set."""
    return mark_instances(Dataset("coco", {"test": examples}), path).split("test")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "instances.json")


def test_words_that_name_a_category_get_the_boxes_of_all_its_things(file: Path):
    [marked] = mark(file, example("A woman waits.", "At the traffic lights, people eat."))
    assert marked.captions[0] == Caption(("a", "woman", "waits"), (Phrase(1, PEOPLE, "person"),))
    [light, people] = marked.captions[1].phrases
    assert (light.noun, light.kind, light.boxes) == (3, "outdoor", (pytest.approx((0.95, 0.9, 1, 1)),))
    assert people == Phrase(4, PEOPLE, "person")


def test_a_category_that_the_image_does_not_show_is_not_marked(file: Path):
    """The dog's box in the first image has no area, and nobody is in the second."""
    first, second, unknown = mark(
        file, example("A dog"), example("A dog and a man", image="000000000008.jpg"), example("A man", image="9.jpg")
    )
    assert first.captions[0].phrases == ()
    assert second.captions[0].phrases == (Phrase(1, (pytest.approx((0.1, 0.1, 0.3, 0.3)),), "animal"),)
    assert unknown.captions[0].phrases == ()


def test_the_longest_name_counts(file: Path):
    [marked] = mark(file, example("A man with two hot dogs"))
    assert [(marked.captions[0].words[p.noun], p.kind) for p in marked.captions[0].phrases] == [
        ("man", "person"),
        ("dogs", "food"),
    ]


def test_a_category_is_called_by_its_name_and_its_synonyms_in_both_numbers():
    assert names_of("dog") == {("dog",), ("dogs",), ("puppy",), ("puppies",)}
    assert names_of("fire hydrant") == {(*fire, s) for fire in ((), ("fire",)) for s in ("hydrant", "hydrants")}
    assert names_of("zebra") == {("zebra",), ("zebras",)}
    assert {("man",), ("men",), ("people",), ("child",), ("players",)} <= names_of("person")


needs_coco = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs SHOWATTENDTELL_SHARED")


@needs_coco
def test_no_two_of_cocos_categories_share_a_name():
    categories = json.loads((FOLDER / "instances_val2017.json").read_text())["categories"]
    assert len(categories) == 80
    assert SYNONYMS.keys() <= {category["name"] for category in categories}
    names = [name for category in categories for name in names_of(category["name"])]
    assert len(names) == len(set(names))
