"""COCO's instances: boxes of 80 object categories for the words of captions that name them (Lin et al. 2014)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import PositiveInt

from showattendtell.data.files import read_json
from showattendtell.data.tokenizers import tokenize
from showattendtell.errors import UserError
from showattendtell.types import WHOLE, Box, Caption, Dataset, Example, Phrase

SYNONYMS = {
    "person": (
        *("man", "woman", "boy", "girl", "child", "kid", "baby", "toddler", "guy", "lady", "gentleman", "adult"),
        *("player", "rider", "skier", "snowboarder", "skateboarder", "surfer", "batter", "pitcher", "catcher"),
        *("cyclist", "biker", "pedestrian", "skater", "chef", "officer", "policeman", "fireman"),
    ),
    "bicycle": ("bike",),
    "motorcycle": ("motorbike", "motor bike", "motor cycle"),
    "airplane": ("plane", "aeroplane", "jet", "aircraft", "airliner"),
    "boat": ("sailboat", "canoe", "kayak", "ship"),
    "traffic light": ("traffic signal", "stoplight", "stop light"),
    "fire hydrant": ("hydrant",),
    "cat": ("kitten",),
    "dog": ("puppy",),
    "horse": ("pony",),
    "sheep": ("lamb",),
    "cow": ("bull", "calf", "cattle"),
    "backpack": ("back pack",),
    "handbag": ("hand bag", "purse"),
    "tie": ("necktie",),
    "suitcase": ("luggage",),
    "snowboard": ("snow board",),
    "sports ball": ("ball",),
    "baseball bat": ("bat",),
    "baseball glove": ("mitt",),
    "skateboard": ("skate board",),
    "surfboard": ("surf board",),
    "tennis racket": ("racket", "racquet"),
    "wine glass": ("wineglass",),
    "cup": ("mug",),
    "hot dog": ("hotdog",),
    "donut": ("doughnut",),
    "couch": ("sofa",),
    "potted plant": ("plant", "houseplant"),
    "dining table": ("table",),
    "tv": ("television",),
    "laptop": ("laptop computer",),
    "remote": ("remote control",),
    "cell phone": ("cellphone", "phone", "smartphone"),
    "refrigerator": ("fridge",),
    "teddy bear": ("teddy",),
    "hair drier": ("hair dryer", "blow dryer"),
}
"""Synonyms of categories in captions, in the singular."""
PLURALS = {
    **{"person": "people", "child": "children", "mouse": "mice", "knife": "knives", "calf": "calves"},
    **{name: name for name in ("sheep", "cattle", "aircraft", "luggage", "skis", "scissors", "broccoli")},
}
"""Irregular plurals."""

Name = tuple[str, ...]
"""The words of a category's name: `("traffic", "light")`."""


@dataclass(slots=True)
class InstanceImage:
    id: int
    file_name: str
    width: PositiveInt
    height: PositiveInt


@dataclass(slots=True)
class CocoCategory:
    id: int
    name: str
    supercategory: str = ""


@dataclass(slots=True)
class CocoInstance:
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: bool = False


@dataclass(slots=True)
class CocoInstances:
    """Fields read from `instances_train2017.json` and similar files."""

    images: list[InstanceImage]
    categories: list[CocoCategory]
    annotations: list[CocoInstance]


class CategoryInstances(NamedTuple):
    """A category in an image: the boxes of its objects, in fractions, and its supercategory."""

    boxes: tuple[Box, ...]
    kind: str


def mark_instances(dataset: Dataset, path: Path) -> Dataset:
    """Return the data set with a phrase for each word that names a category in the image, for the images of a file.

    A phrase covers all objects of its category in the image, except crowds; its noun is the last word of the name,
    and its kind the supercategory. Matching uses words only: an orange cat counts as fruit if the image shows oranges.
    Raises `UserError` for a file of another layout or of other images.
    """
    content = read_json(path, CocoInstances, "COCO's")
    known = {category.id: category for category in content.categories}
    strange = next((thing.category_id for thing in content.annotations if thing.category_id not in known), None)
    if strange is not None:
        raise UserError(f"{path} has things of category {strange}, which it does not name; fetch it again")
    listed = {image.file_name for image in content.images}
    if not any(example.image in listed for example in dataset.examples()):
        raise UserError(f"{path} has none of the images of {dataset.name}; it is for other images")
    names = {name: category.id for category in content.categories for name in names_of(category.name)}
    seen = _seen(content, known)

    def marked(example: Example) -> Example:
        if example.image not in seen:
            return example
        captions = (_marked(caption, names, seen[example.image]) for caption in example.captions)
        return example._replace(captions=tuple(captions))

    splits = {split: tuple(marked(example) for example in examples) for split, examples in dataset.splits.items()}
    return dataset._replace(splits=splits)


def _seen(content: CocoInstances, known: Mapping[int, CocoCategory]) -> Mapping[str, Mapping[int, CategoryInstances]]:
    """Return boxes by image file and category; the file gives left, top, width and height in pixels."""
    images = {image.id: image for image in content.images}
    boxes: defaultdict[tuple[int, int], list[Box]] = defaultdict(list)
    for thing in content.annotations:
        if thing.image_id in images and not thing.iscrowd:
            image, (left, top, width, height) = images[thing.image_id], thing.bbox
            box = Box(left, top, left + width, top + height).scaled(1 / image.width, 1 / image.height).clipped(WHOLE)
            if box.area > 0:
                boxes[thing.image_id, thing.category_id].append(box)
    seen: defaultdict[str, dict[int, CategoryInstances]] = defaultdict(dict)
    for (image_id, category), drawn in boxes.items():
        seen[images[image_id].file_name][category] = CategoryInstances(tuple(drawn), known[category].supercategory)
    return seen


def _marked(caption: Caption, names: Mapping[Name, int], seen: Mapping[int, CategoryInstances]) -> Caption:
    named = [(noun, seen[category]) for noun, category in find_names(caption.words, names) if category in seen]
    return caption._replace(phrases=tuple(Phrase(noun, thing.boxes, thing.kind) for noun, thing in named))


def find_names(words: Sequence[str], names: Mapping[Name, int]) -> Iterator[tuple[int, int]]:
    """Yield (index of its last word, category) of each name in a caption; the longest wins: a hot dog is no dog."""
    longest = max(map(len, names), default=0)
    start = 0
    while start < len(words):
        ends = range(min(start + longest, len(words)), start, -1)
        end = next((end for end in ends if tuple(words[start:end]) in names), None)
        if end is not None:
            yield end - 1, names[tuple(words[start:end])]
        start = end or start + 1


def names_of(category: str) -> set[Name]:
    """Return all names of a category, singular and plural."""
    singular = [tokenize(name) for name in (category, *SYNONYMS.get(category, ()))]
    return {form for *first, last in singular for form in ((*first, last), (*first, plural(last)))}


def plural(noun: str) -> str:
    """
    >>> [plural(noun) for noun in ("dog", "bus", "puppy", "boy", "woman", "person")]
    ['dogs', 'buses', 'puppies', 'boys', 'women', 'people']
    """
    if noun in PLURALS:
        return PLURALS[noun]
    if noun.endswith("man"):
        return f"{noun.removesuffix('man')}men"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun.removesuffix('y')}ies"
    return f"{noun}s"
