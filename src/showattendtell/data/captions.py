"""Caption files of the published formats, read into (image, sentences) per split."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from showattendtell.errors import UserError
from showattendtell.records import Caption, Example
from showattendtell.text.tokenize import tokenize

Sentences = dict[str, list[str]]
"""Captions by image name, in the file's order."""
Layout = TypeVar("Layout", bound=BaseModel)


def read_text(path: Path) -> str:
    """A text file; a `UserError` where it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file was expected") from None
    except UnicodeDecodeError as fault:
        raise UserError(f"{path} is not UTF-8 text (byte {fault.start}); convert it to UTF-8") from None


def read_token_file(path: Path) -> Sentences:
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
    return sentences


def read_list(path: Path) -> list[str]:
    """A split list: an image name a line."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


def read_json(path: Path, layout: type[Layout], whose: str) -> Layout:
    """A JSON file of a published layout; a `UserError` that says where it differs, and `whose` layout it is."""
    try:
        return layout.model_validate_json(read_text(path))
    except ValidationError as fault:
        first = fault.errors()[0]
        if first["type"] == "json_invalid":
            raise UserError(f"{path} is not JSON ({first['ctx']['error']}); export it again") from None
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path} is not in {whose} layout: {where}: {first['msg'].lower()}") from None


class KarpathySentence(BaseModel):
    raw: str


class KarpathyImage(BaseModel):
    filename: str
    split: str
    sentences: list[KarpathySentence]


class KarpathyFile(BaseModel):
    """The fields that are used of Karpathy's `dataset_flickr8k.json` and its like."""

    images: list[KarpathyImage]


def read_karpathy(path: Path) -> tuple[Sentences, dict[str, list[str]]]:
    """Karpathy's JSON: the sentences by image, and the images by split."""
    entries = read_json(path, KarpathyFile, "Karpathy's").images
    splits: dict[str, list[str]] = {}
    for entry in entries:
        splits.setdefault(entry.split, []).append(entry.filename)
    return {entry.filename: [sentence.raw for sentence in entry.sentences] for entry in entries}, splits


def assemble(
    sentences: Sentences, splits: Mapping[str, Sequence[str]], folder: Path, captions_per_image: int
) -> dict[str, tuple[Example, ...]]:
    """Examples by split. Captions beyond `captions_per_image` are dropped, as the paper does.

    Raises `UserError` for an image without a caption, and for one that is listed twice, in one split or in two.
    """
    listed = Counter(image for images in splits.values() for image in images)
    twice = next((image for image, count in listed.items() if count > 1), None)
    if twice:
        where = ", ".join(split for split, images in splits.items() if twice in images)
        raise UserError(f"image {twice} is listed more than once ({where}); keep one of its entries")

    def example(image: str) -> Example:
        written = (sentence.strip() for sentence in sentences.get(image, [])[:captions_per_image])
        captions = tuple(Caption(words, written=sentence) for sentence in written if (words := tokenize(sentence)))
        if not captions:
            raise UserError(f"image {image} stands in a split list but has no caption; add one or remove it there")
        return Example(image, str(folder / image), captions)

    return {split: tuple(example(image) for image in images) for split, images in splits.items()}
