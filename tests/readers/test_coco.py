"""COCO's two releases, made small here and as a real corner of them, and the boxes of its categories."""

import json
from pathlib import Path
from typing import Any

import pytest
from repository import SHARED

from showattendtell.readers.assembly import hash_fraction
from showattendtell.readers.coco import SYNONYMS, mark_instances, names_of, read_coco, read_coco2017
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import Box, Caption, Dataset, Example, Phrase

FOLDER = SHARED / "coco_mini"
PLACES = {
    1: ("train2014", "train"),
    2: ("val2014", "restval"),
    3: ("val2014", "val"),
    4: ("val2014", "test"),
    5: ("train2014", "train"),
}
"""The folder and the split of each image, by its number."""


def name(number: int) -> str:
    return f"COCO_{PLACES[number][0]}_{number:012d}.jpg"


def names(dataset: Dataset) -> dict[str, list[str]]:
    return {split: [example.image for example in examples] for split, examples in dataset.splits.items()}


def instances(path: Path, images: dict[int, str], left: int = 0) -> None:
    """A dog of 10 x 10 pixels in each image of 100 x 50."""
    content = {
        "images": [{"id": number, "file_name": file, "width": 100, "height": 50} for number, file in images.items()],
        "categories": [{"id": 18, "name": "dog", "supercategory": "animal"}],
        "annotations": [
            {"image_id": n, "category_id": 18, "bbox": [left, 0, 10, 10], "segmentation": []} for n in images
        ],
    }
    path.write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """COCO 2014 with Karpathy's splits, all fields of which stand in his file."""
    entries = []
    for number, (folder, split) in PLACES.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name(number)).touch()
        said = [
            {"tokens": ["a", "dog"], "raw": "A dog.", "imgid": number, "sentid": n} for n in range(5 + (number == 1))
        ]
        place = {"filepath": folder, "filename": name(number), "cocoid": number, "imgid": number, "sentids": []}
        entries.append({**place, "split": split, "sentences": said})
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": entries, "dataset": "coco"}))
    return tmp_path


def test_karpathy_s_splits_are_read_from_the_folders_that_they_name(root: Path):
    dataset = read_coco(str(root))
    assert names(dataset) == {"train": [name(1), name(5), name(2)], "val": [name(3)], "test": [name(4)]}
    assert dataset.split("train")[2].path == str(root / "val2014" / name(2))
    assert dataset.notes == ("dropped captions beyond 5 of an image: 1",)
    assert {len(example.captions) for example in dataset.examples()} == {5}


def test_restval_may_be_left_out_of_training(root: Path):
    assert names(read_coco(str(root), train_on_restval=False)) == {
        "train": [name(1), name(5)],
        "restval": [name(2)],
        "val": [name(3)],
        "test": [name(4)],
    }


def test_objects_of_several_files_are_marked(root: Path):
    (root / "annotations").mkdir()
    instances(root / "annotations" / "train.json", {1: name(1), 5: name(5)})
    instances(root / "annotations" / "val.json", {2: name(2), 3: name(3)}, left=50)
    dataset = read_coco(str(root), instances=["train.json", "val.json"])
    seen = {example.image: example.captions[0].phrases for example in dataset.examples()}
    left, right = Box(0, 0, 0.1, 0.2), Box(0.5, 0, 0.6, 0.2)
    assert seen[name(1)] == seen[name(5)] == (Phrase(1, (pytest.approx(left),), "animal"),)
    assert seen[name(2)] == seen[name(3)] == (Phrase(1, (pytest.approx(right),), "animal"),)
    assert seen[name(4)] == ()
    assert read_coco(str(root), instances="train.json").split("val")[0].captions[0].phrases == ()


def write_2017(root: Path, **parts: list[str]) -> Path:
    (root / "annotations").mkdir()
    for part, images in parts.items():
        (root / part).mkdir()
        for image in images:
            (root / part / image).touch()
        content = {
            "images": [{"id": number, "file_name": image} for number, image in enumerate(images)],
            "annotations": [{"image_id": number, "caption": f"Image {image}"} for number, image in enumerate(images)],
        }
        (root / "annotations" / f"captions_{part}.json").write_text(json.dumps(content))
    return root


TRAIN = [f"{number:012d}.jpg" for number in range(50)]
HELD_OUT = [image for image in TRAIN if hash_fraction(image) < 0.2]


@pytest.mark.parametrize(("val2017", "other"), [("test", "val"), ("val", "test")])
def test_val2017_is_to_test_or_to_validate_and_a_part_of_train2017_the_other(tmp_path: Path, val2017: Any, other: str):
    root = write_2017(tmp_path, train2017=TRAIN, val2017=["a.jpg", "b.jpg"])
    dataset = read_coco2017(str(root), val2017=val2017, held_out=0.2)
    rest = [image for image in TRAIN if image not in HELD_OUT]
    assert 0 < len(HELD_OUT) < 25
    assert names(dataset) == {"train": rest, other: HELD_OUT, val2017: ["a.jpg", "b.jpg"]}
    assert dataset.split(val2017)[0].path == str(root / "val2017" / "a.jpg")
    assert dataset.split(other)[0].path == str(root / "train2017" / HELD_OUT[0])


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_real_corner_of_coco_is_read_whole():
    files = ["instances_train2017.json", "instances_val2017.json"]
    dataset = read_coco2017(str(FOLDER), held_out=0.1, instances=files)
    contents = [json.loads((FOLDER / "annotations" / f"captions_{p}2017.json").read_text()) for p in ("train", "val")]
    said: dict[str, list[str]] = {}
    for content in contents:
        by_number = {image["id"]: image["file_name"] for image in content["images"]}
        for annotation in content["annotations"]:
            said.setdefault(by_number[annotation["image_id"]], []).append(annotation["caption"])
    assert {example.image for example in dataset.examples()} == said.keys()
    train, test = ({image["file_name"] for image in content["images"]} for content in contents)
    assert {example.image for example in dataset.split("test")} == test
    assert {example.image for example in dataset.split("val")} == {
        image for image in train if hash_fraction(image) < 0.1
    }
    for example in dataset.examples():
        assert Path(example.path).is_file()
        assert [c.words for c in example.captions] == [tokenize(caption) for caption in said[example.image][:5]]
    marked = [caption for example in dataset.examples() for caption in example.captions if caption.phrases]
    assert len(marked) == 345 + 358 - sum(len(captions) > 5 for captions in said.values())


ANNOTATIONS = SHARED / "coco_mini" / "annotations"
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


needs_coco = pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason="needs SHOWATTENDTELL_SHARED")


@needs_coco
def test_no_two_of_cocos_categories_share_a_name():
    categories = json.loads((ANNOTATIONS / "instances_val2017.json").read_text())["categories"]
    assert len(categories) == 80
    assert SYNONYMS.keys() <= {category["name"] for category in categories}
    names = [name for category in categories for name in names_of(category["name"])]
    assert len(names) == len(set(names))
