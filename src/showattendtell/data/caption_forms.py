"""The forms in which captions are published, and a reader for each."""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, RootModel

from showattendtell.data.text_files import fit, parse_json, read_json, read_text
from showattendtell.errors import UserError

Sentences = dict[str, list[str]]
"""Captions by image name, in the file's order."""


class CaptionFile(NamedTuple):
    """What a caption file says.

    form        what it is, in words
    captions    by image name; of plain lines each is an image, named `line 1` and so on
    aliases     for an image of two names the other one (its number in COCO), and the one that `captions` has
    splits      the image names of each split, where the file tells splits
    references  what people say of the images, where `captions` are a model's
    folders     by image name the folder that the image is in, where the file tells it
    """

    form: str
    captions: Sentences
    aliases: Mapping[str, str] = {}
    splits: Mapping[str, list[str]] = {}
    references: Mapping[str, list[str]] = {}
    folders: Mapping[str, str] = {}


class Entry(NamedTuple):
    """What a place in a file, such as a line, says of an image; `split` is empty where it tells none."""

    place: str
    image: str
    captions: list[str]
    split: str


def collect(form: str, entries: Iterable[Entry], path: Path) -> CaptionFile:
    """The captions of each image, which may stand in several places, and its split.

    Raises `UserError` for an image that is in two splits, and for one that is in none where others are.
    """
    sentences: Sentences = {}
    split_of: dict[str, str] = {}
    for place, image, captions, split in entries:
        sentences.setdefault(image, []).extend(captions)
        before = split_of.setdefault(image, split)
        if before != split:
            here, there = (f"in the split '{name}'" if name else "in no split" for name in (split, before))
            raise UserError(f"{place}: image {image} is {here}, and {there} before; give it one split")
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for image, split in split_of.items():
        splits[split].append(image)
    if "" in splits and len(splits) > 1:
        raise UserError(f"{path}: image {splits[''][0]} is in no split, others are; give it one")
    return CaptionFile(form, sentences, splits={} if "" in splits else dict(splits))


def gather(pairs: Iterable[tuple[str, Iterable[str]]]) -> Sentences:
    """The captions of each image, which may stand in several places."""
    sentences: Sentences = {}
    for image, captions in pairs:
        sentences.setdefault(image, []).extend(captions)
    return sentences


PLAIN = "plain lines"


def read_plain_lines(path: Path) -> CaptionFile:
    """A caption a line; line i is image i, also where it is empty."""
    lines = read_text(path).removesuffix("\n").split("\n")
    if "\t" in lines[0]:
        raise UserError(
            f"{path} is of no known form: its first line has tabs, but is no header with the columns image and caption "
            "and does not begin with 'name.jpg#0'"
        )
    return CaptionFile(PLAIN, {f"line {number}": [line] for number, line in enumerate(lines, start=1)})


def read_token_file(path: Path) -> CaptionFile:
    """Flickr's layout: a line is `name.jpg#0<TAB>caption`."""
    sentences: Sentences = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        key, tab, sentence = line.partition("\t")
        image, mark, index = key.rpartition("#")
        if not (tab and mark and index.isdigit() and image and sentence.strip()):
            raise UserError(f"{path}, line {number}: expected 'name.jpg#0<TAB>caption', got '{line[:60]}'")
        sentences.setdefault(image, []).append(sentence)
    return CaptionFile("Flickr's token file", sentences)


def find_delimiter(header: str) -> str | None:
    """What stands between the columns of a table's header, if `image` and `caption` are among them."""
    for delimiter in ",\t;":
        if {"image", "caption"} <= set(*csv.reader([header], delimiter=delimiter, skipinitialspace=True)):
            return delimiter
    return None


def read_table(path: Path) -> CaptionFile:
    """CSV whose header has the columns `image` and `caption`, and perhaps `split`, a caption a row; with tabs or
    semicolons too."""
    text = read_text(path)
    header = text.partition("\n")[0]
    delimiter = find_delimiter(header)
    if not delimiter:
        raise UserError(f"{path}, line 1: expected a header with the columns image and caption, got '{header[:60]}'")
    rows = csv.DictReader(StringIO(text), delimiter=delimiter, skipinitialspace=True, strict=True)
    return collect("CSV", _rows(rows, path), path)


def _rows(rows: "csv.DictReader[str]", path: Path) -> Iterator[Entry]:
    try:
        for row in rows:
            if None in row or None in row.values() or not row["image"]:
                raise csv.Error(f"expected a cell for each of the columns {', '.join(rows.fieldnames or ())}")
            place = f"{path}, line {rows.line_num}"
            yield Entry(place, row["image"], [row["caption"]], row.get("split", "").strip())
    except csv.Error as fault:
        hint = "put a caption that has a comma or a quote into double quotes"
        raise UserError(f"{path}, line {rows.line_num}: {fault}; {hint}") from None


ImageName = Annotated[str, Field(coerce_numbers_to_str=True, min_length=1)]
"""A name, or a number such as COCO's."""


class Captioned(BaseModel):
    """An image with a caption, or with several."""

    image: ImageName = Field(validation_alias=AliasChoices("image", "image_id"))
    captions: Annotated[list[str], BeforeValidator(lambda said: [said] if isinstance(said, str) else said)] = Field(
        validation_alias=AliasChoices("caption", "captions")
    )
    split: str = ""

    def entry(self, place: str) -> Entry:
        return Entry(place, self.image, self.captions, self.split.strip())


def read_json_lines(path: Path) -> CaptionFile:
    """`{"image": "a.jpg", "caption": "a dog"}` a line; with `captions`, a list of them; perhaps with a `split`."""
    return collect("JSON lines", _json_lines(path), path)


def _json_lines(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield fit(parse_json(line, place), Captioned, place).entry(place)


class CocoResults(RootModel[list[Captioned]]):
    """COCO's layout for what a model wrote."""


def read_coco_results(path: Path) -> CaptionFile:
    """`[{"image_id": 1, "caption": "a dog"}, ...]`"""
    content = parse_json(read_text(path), str(path))
    entries = fit(content, CocoResults, f"{path} is not in COCO's results layout").root
    return collect("COCO results", (said.entry(f"{path}, {number}") for number, said in enumerate(entries)), path)


@dataclass(slots=True)
class CocoImage:
    id: ImageName
    file_name: str | None = None


@dataclass(slots=True)
class CocoCaption:
    image_id: ImageName
    caption: str


@dataclass(slots=True)
class CocoCaptions:
    """The fields that are used of `captions_train2017.json` and its like."""

    images: list[CocoImage]
    annotations: list[CocoCaption]


def read_coco_captions(path: Path) -> CaptionFile:
    """COCO's layout for what people say: an image is named after its file, and its number is the alias."""
    content = read_json(path, CocoCaptions, "COCO's")
    names = {image.id: image.file_name or image.id for image in content.images}
    _refuse_twice((image.id for image in content.images), path)
    _refuse_twice(names.values(), path)
    strange = next((said.image_id for said in content.annotations if said.image_id not in names), None)
    if strange is not None:
        raise UserError(f"{path} has a caption for image {strange}, which it does not list; add it to its images")
    silent: list[tuple[str, list[str]]] = [(name, []) for name in names.values()]
    said = [(names[annotation.image_id], [annotation.caption]) for annotation in content.annotations]
    return CaptionFile("COCO captions", gather([*silent, *said]), _aliases(names))


@dataclass(slots=True)
class KarpathySentence:
    raw: str


@dataclass(slots=True)
class KarpathyImage:
    filename: str
    split: str
    sentences: list[KarpathySentence]
    filepath: str = ""
    cocoid: int | None = None
    imgid: int | None = None

    def number(self) -> int | None:
        """In COCO, or else in the file."""
        return self.imgid if self.cocoid is None else self.cocoid


@dataclass(slots=True)
class KarpathyFile:
    """The fields that are used of Karpathy's `dataset_flickr8k.json` and its like."""

    images: list[KarpathyImage]


def read_karpathy(path: Path) -> CaptionFile:
    """Karpathy's JSON, with its splits and folders; an image's number is its alias."""
    images = read_json(path, KarpathyFile, "Karpathy's").images
    _refuse_twice((image.filename for image in images), path)
    splits: dict[str, list[str]] = {}
    for image in images:
        splits.setdefault(image.split, []).append(image.filename)
    numbers = {str(number): image.filename for image in images if (number := image.number()) is not None}
    sentences = {image.filename: [sentence.raw for sentence in image.sentences] for image in images}
    folders = {image.filename: image.filepath for image in images if image.filepath}
    return CaptionFile("Karpathy's JSON", sentences, _aliases(numbers), splits, folders=folders)


class Results(BaseModel):
    """The fields that are used of what `evaluate` writes."""

    captions: dict[str, str]
    references: dict[str, list[str]]


def read_results(path: Path) -> CaptionFile:
    """A result file of `evaluate`: what the model wrote, and what people say."""
    results = fit(parse_json(read_text(path), str(path)), Results, f"{path} is not in evaluate's layout")
    captions = {image: [caption] for image, caption in results.captions.items()}
    return CaptionFile("evaluate's results", captions, references=results.references)


def _refuse_twice(names: Iterable[str], path: Path) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{path}: image {twice} is listed more than once; keep one of its entries")


def _aliases(names: Mapping[str, str]) -> dict[str, str]:
    """Without those that are the name of an image themselves."""
    own = set(names.values())
    return {alias: name for alias, name in names.items() if alias not in own}
