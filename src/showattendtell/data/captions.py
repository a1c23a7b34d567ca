"""Caption files of the published formats, read into (image, sentences) per split."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from showattendtell.errors import UserError
from showattendtell.records import Caption, Example
from showattendtell.text.tokenize import tokenize

Sentences = dict[str, list[str]]
"""Captions by image name, in the file's order."""


def read_text(path: Path) -> str:
    """A text file; a `UserError` where it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file was expected") from None
    except UnicodeDecodeError as fault:
        raise UserError(f"{path} is not UTF-8 text (byte {fault.start}); convert it to UTF-8") from None


def read_token_file(path: Path) -> Sentences:
    """Flickr's layout: a line is `name.jpg#0<TAB>caption`."""
    sentences: Sentences = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
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
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_karpathy(path: Path) -> tuple[Sentences, dict[str, list[str]]]:
    """Karpathy's JSON: the sentences by image, and the images by split."""
    try:
        entries = json.loads(read_text(path))["images"]
        sentences = {entry["filename"]: [sentence["raw"] for sentence in entry["sentences"]] for entry in entries}
        splits: dict[str, list[str]] = {}
        for entry in entries:
            splits.setdefault(entry["split"], []).append(entry["filename"])
    except json.JSONDecodeError as fault:
        raise UserError(f"{path} is not JSON (line {fault.lineno}: {fault.msg})") from None
    except (KeyError, TypeError) as fault:
        raise UserError(f"{path} is not in Karpathy's layout: an image lacks {fault}") from None
    return sentences, splits


def assemble(
    sentences: Sentences, splits: Mapping[str, Sequence[str]], folder: Path, captions_per_image: int
) -> dict[str, tuple[Example, ...]]:
    """Examples by split. Captions beyond `captions_per_image` are dropped, as the paper does."""

    def example(image: str) -> Example:
        words = (tokenize(sentence) for sentence in sentences.get(image, [])[:captions_per_image])
        captions = tuple(Caption(words) for words in words if words)
        if not captions:
            raise UserError(f"image {image} stands in a split list but has no caption; add one or remove it there")
        return Example(image, str(folder / image), captions)

    return {split: tuple(example(image) for image in images) for split, images in splits.items()}
