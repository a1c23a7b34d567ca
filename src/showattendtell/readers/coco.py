"""MS COCO (Lin et al. 2014): the 2014 images in Karpathy's splits, the 2017 release, and boxes of its instances."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from showattendtell.errors import UserError
from showattendtell.images.names import GET_SPLITS, dataset_folder
from showattendtell.readers.assembly import (
    assemble,
    check_images,
    join_restval,
    look_in,
    split_by_hash,
)
from showattendtell.readers.custom import read_references
from showattendtell.runtime.process import paused_collection
from showattendtell.settings import Fraction, Place, PositiveInt, Source
from showattendtell.text.parsing import CaptionFile, check_layout, parse_json, read_text
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import WHOLE, Box, Dataset, Example, Phrase

KARPATHY = "dataset_coco.json"


@paused_collection()
def read_coco(
    root: Place = "data/coco",
    captions: Source = KARPATHY,
    train_on_restval: bool = True,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    instances: Source | Sequence[Source] | None = None,
) -> Dataset:
    """Read MS COCO 2014 (Lin et al. 2014) in Karpathy's splits: 5,000 images each for validation and test.

    Args:
        root: folder that holds `train2014` and `val2014`, with the captions there or in `annotations`.
        captions: Karpathy's `dataset_coco.json`.
        train_on_restval: add Karpathy's 30,504 leftover validation images (restval) to the 82,783 of train.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        instances: COCO's instance files, as [instances_train2014.json,instances_val2014.json], for the boxes of objects
            that captions name; searched in `root` first.
    """
    folder = dataset_folder(root, "coco")
    file = read_references(_find_text(folder, captions))
    if not file.split_of:
        raise UserError(f"{captions} in {root} has no splits; give Karpathy's, or read it with dataset=custom")
    if train_on_restval:
        file = join_restval(file)
    return _build("coco", file, folder, captions_per_image, skip_unreadable, instances)


@paused_collection()
def read_coco2017(
    root: Place,
    val2017: Literal["test", "val"] = "test",
    held_out: Fraction = 0.04,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    instances: Source | Sequence[Source] | None = None,
) -> Dataset:
    """Read the 2017 release of MS COCO: 118,287 images in train2017 and 5,000 in val2017.

    Args:
        root: folder that holds `train2017` and `val2017`, with the captions of both there or in `annotations`.
        val2017: the split that val2017 becomes; the other one of test and val is a part of train2017.
        held_out: fraction of train2017 in that part; a hash of an image's name decides which images are in it.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        instances: COCO's instance files, as [instances_train2017.json,instances_val2017.json], for the boxes of objects
            that captions name; searched in `root` first.
    """
    folder = dataset_folder(root, "coco2017")
    train, val = (read_references(_find_text(folder, f"captions_{part}.json")) for part in ("train2017", "val2017"))
    other = "val" if val2017 == "test" else "test"
    split_of = {**split_by_hash(train.captions, {other: held_out}), **dict.fromkeys(val.captions, val2017)}
    folders = {**dict.fromkeys(train.captions, "train2017"), **dict.fromkeys(val.captions, "val2017")}
    file = train._replace(captions={**train.captions, **val.captions}, split_of=split_of, folders=folders)
    return _build("coco2017", file, folder, captions_per_image, skip_unreadable, instances)


def _find_text(root: Path, name: str) -> Path:
    path = look_in([root, root / "annotations"], name)
    if not path.exists():
        hint = f"; get it by {GET_SPLITS}" if name == KARPATHY else ""
        raise UserError(f"the caption file {name} was not found in {root} or its folder annotations{hint}")
    return path


def _build(
    name: str,
    file: CaptionFile,
    folder: Path,
    captions_per_image: int,
    skip_unreadable: bool,
    instances: str | Sequence[str] | None,
) -> Dataset:
    dataset = check_images(assemble(name, file, folder, captions_per_image), skip_unreadable, folder)
    for given in [instances] if isinstance(instances, str) else instances or ():
        dataset = mark_instances(dataset, look_in([folder, folder / "annotations"], given))
    return dataset


def entries(text: str) -> dict[str, str]:
    """Return what stands after each name of a text such as `person: man, woman; car`."""
    parts = (entry.partition(": ") for entry in " ".join(text.split()).split("; "))
    return {name: rest for name, _, rest in parts}


SYNONYMS = entries("""
person: man, woman, boy, girl, child, kid, baby, toddler, guy, lady, gentleman, adult, player, rider, skier,
snowboarder, skateboarder, surfer, batter, pitcher, catcher, cyclist, biker, pedestrian, skater, chef, officer,
policeman, fireman; bicycle: bike; car; motorcycle: motorbike, motor bike, motor cycle; airplane: plane, aeroplane,
jet, aircraft, airliner; bus; train; truck; boat: sailboat, canoe, kayak, ship; traffic light: traffic signal,
stoplight, stop light; fire hydrant: hydrant; stop sign; parking meter; bench; bird; cat: kitten; dog: puppy; horse:
pony; sheep: lamb; cow: bull, calf, cattle; elephant; bear; zebra; giraffe; backpack: back pack; umbrella; handbag:
hand bag, purse; tie: necktie; suitcase: luggage; frisbee; skis; snowboard: snow board; sports ball: ball; kite;
baseball bat: bat; baseball glove: mitt; skateboard: skate board; surfboard: surf board; tennis racket: racket,
racquet; bottle; wine glass: wineglass; cup: mug; fork; knife; spoon; bowl; banana; apple; sandwich; orange; broccoli;
carrot; hot dog: hotdog; pizza; donut: doughnut; cake; chair; couch: sofa; potted plant: plant, houseplant; bed;
dining table: table; toilet; tv: television; laptop: laptop computer; mouse; remote: remote control; keyboard; cell
phone: cellphone, phone, smartphone; microwave; oven; toaster; sink; refrigerator: fridge; book; clock; vase;
scissors; teddy bear: teddy; hair drier: hair dryer, blow dryer; toothbrush
""")
"""The 80 categories of the instances in their order, with their synonyms in captions, in the singular."""

CATEGORIES = tuple(SYNONYMS)

PLURALS = {
    **{"person": "people", "child": "children", "mouse": "mice", "knife": "knives", "calf": "calves"},
    **{name: name for name in ("sheep", "cattle", "aircraft", "luggage", "skis", "scissors", "broccoli")},
}
"""Irregular plurals."""

Category = TypeVar("Category")
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


def mark_instances(dataset: Dataset, path: Path) -> Dataset:
    """Add a phrase to captions for each word that names a category of objects in the image, and the categories of its
    objects to each image.

    A phrase has the boxes of all objects of its category in the image, except crowds. Its noun is the last word of the
    name, its kind the supercategory. Only words are compared: in an image with oranges, "orange cat" matches the fruit.

    Args:
        path: a file of instances, for some images of the data set.

    Raises:
        UserError: the file has another layout, or is for other images.
    """
    content = check_layout(parse_json(read_text(path), str(path)), CocoInstances, f"{path} is not in COCO's layout")
    images = {image.id: image for image in content.images}
    categories = {category.id: category for category in content.categories}
    names = {name: category for category in content.categories for name in names_of(category.name)}
    boxes = {image.file_name: defaultdict[int, list[Box]](list) for image in content.images}  # by image and category
    for instance in content.annotations:
        image = images.get(instance.image_id)
        if image is None or instance.category_id not in categories:
            continue
        category_boxes = boxes[image.file_name][instance.category_id]  # stays empty for a crowd
        left, top, width, height = instance.bbox  # in pixels
        box = Box(left, top, left + width, top + height).scaled(1 / image.width, 1 / image.height).clipped(WHOLE)
        if box.area > 0 and not instance.iscrowd:
            category_boxes.append(box)
    if not any(example.image in boxes for example in dataset.examples()):
        raise UserError(f"{path} has none of the images of {dataset.name}; it is for other images")

    def mark(example: Example) -> Example:
        if example.image not in boxes:
            return example
        image_boxes = {number: tuple(found) for number, found in boxes[example.image].items()}
        captions = []
        for caption in example.captions:
            found_names = find_names(caption.words, names)
            phrases = (Phrase(noun, image_boxes.get(kind.id, ()), kind.supercategory) for noun, kind in found_names)
            captions.append(caption._replace(phrases=tuple(phrase for phrase in phrases if phrase.boxes)))
        objects = tuple(sorted(categories[number].name for number in image_boxes))
        return example._replace(captions=tuple(captions), objects=objects)

    return dataset.map(mark)


def find_names(words: Sequence[str], names: Mapping[Name, Category]) -> Iterator[tuple[int, Category]]:
    """Yield (index of its last word, category) of each name in a caption. The longest match counts: a hot dog is no
    dog."""
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
    names = f"{category}, {SYNONYMS.get(category, '')}".split(", ")
    return {form for name in names for form in forms(name)}


def forms(name: str) -> set[Name]:
    """Return the singular and the plural of a name; none of one without words."""
    words = tokenize(name)
    return {words, (*words[:-1], plural(words[-1]))} if words else set()


def plural(noun: str) -> str:
    """Return the plural of a noun.

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
