"""Readers of caption files in JSON: COCO's, Karpathy's, JSON lines and the results of `evaluate`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from showattendtell.data.parsing import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    CaptionEntry,
    CaptionFile,
    check_layout,
    collect,
    parse_json,
    read_json,
    read_text,
)
from showattendtell.errors import UserError

ImageName = Annotated[str, Field(coerce_numbers_to_str=True, min_length=1)]
"""A name, or a number as in COCO."""

Fields = Mapping[str, Any] | None
"""The fields of an object that may have its split, by `read_json`."""


class CaptionRecord(BaseModel):
    """An image with one or several captions, in JSON lines or COCO's results."""

    model_config = ConfigDict(extra="allow")

    image: ImageName = Field(validation_alias=AliasChoices(*IMAGE_FIELDS))
    captions: Annotated[list[str], BeforeValidator(lambda said: [said] if isinstance(said, str) else said)] = Field(
        validation_alias=AliasChoices(*CAPTION_FIELDS, "captions")
    )

    def entry(self, origin: str) -> CaptionEntry:
        fields = self.model_extra or {}
        if "captions" in fields:
            raise UserError(f"{origin} has captions in two fields, also in captions; leave one")
        return origin, self.image, self.captions, fields


def read_json_lines(path: Path) -> CaptionFile:
    """Read lines such as `{"image": "a.jpg", "caption": "a dog"}`; or `captions` with a list, and `split`."""
    lines = ((f"{path}, line {n}", line) for n, line in enumerate(read_text(path).split("\n"), start=1) if line.strip())
    entries = (check_layout(parse_json(line, origin), CaptionRecord, origin).entry(origin) for origin, line in lines)
    return collect("JSON lines", entries, path)


def read_coco_results(path: Path) -> CaptionFile:
    """Read `[{"image_id": 1, "caption": "a dog"}, ...]`."""
    content = parse_json(read_text(path), str(path))
    entries = check_layout(content, list[CaptionRecord], f"{path} is not in COCO's results layout")
    return collect("COCO results", (record.entry(f"{path}, {i}") for i, record in enumerate(entries)), path)


@dataclass(slots=True)
class CocoImage:
    id: ImageName
    file_name: str | None = None
    split_fields: Fields = None


@dataclass(slots=True)
class CocoCaption:
    image_id: ImageName
    caption: str
    split_fields: Fields = None


@dataclass(slots=True)
class CocoCaptions:
    """Fields read from `captions_train2017.json` and similar files."""

    images: list[CocoImage]
    annotations: list[CocoCaption]
    split_fields: Fields = None


def read_coco_captions(path: Path) -> CaptionFile:
    """Read COCO's reference captions. Images have the names of their files, and their numbers as aliases."""
    content = read_json(path, CocoCaptions, "COCO's")
    if content.split_fields:
        raise UserError(f"{path} has splits outside of its images; write the split of each image into its entry")
    names = {image.id: image.file_name or image.id for image in content.images}
    _refuse_duplicates((image.id for image in content.images), path)
    _refuse_duplicates(names.values(), path)
    fields_of = {image.id: dict(image.split_fields or {}) for image in content.images}
    for annotation in content.annotations:
        if annotation.image_id not in names:
            raise UserError(
                f"{path} has a caption for image {annotation.image_id}, which it does not list; add it to its images"
            )
        fields_of[annotation.image_id] |= annotation.split_fields or {}
    # images without captions have an entry too
    records: list[tuple[str, str, Fields]] = [(image.id, "", image.split_fields) for image in content.images]
    records += [(said.image_id, said.caption, said.split_fields) for said in content.annotations]
    entries: list[CaptionEntry] = []
    for number, caption, fields in records:
        captions = [caption] if caption else []
        entries.append((f"{path}, image {number}", names[number], captions, {**fields_of[number], **(fields or {})}))
    return collect("COCO captions", entries, path)._replace(aliases=_aliases(names))


@dataclass(slots=True)
class KarpathySentence:
    raw: str


@dataclass(slots=True)
class KarpathyImage:
    filename: str
    sentences: list[KarpathySentence]
    split_fields: Fields = None
    filepath: str = ""
    cocoid: int | None = None
    imgid: int | None = None


@dataclass(slots=True)
class KarpathyFile:
    """Fields read from Karpathy's `dataset_flickr8k.json` and similar files."""

    images: list[KarpathyImage]


def read_karpathy(path: Path) -> CaptionFile:
    """Read Karpathy's JSON, with its splits and folders. Aliases are the numbers in COCO, or else in the file."""
    images = read_json(path, KarpathyFile, "Karpathy's").images
    _refuse_duplicates((image.filename for image in images), path)
    entries: list[CaptionEntry] = []
    for image in images:
        captions = [sentence.raw for sentence in image.sentences]
        entries.append((f"{path}, image {image.filename}", image.filename, captions, image.split_fields or {}))
    file = collect("Karpathy's JSON", entries, path)
    if images and not file.splits:
        raise UserError(f"{path}: image {images[0].filename} has no split; give each image one")
    ids = ((image.imgid if image.cocoid is None else image.cocoid, image.filename) for image in images)
    numbers = {str(number): name for number, name in ids if number is not None}
    folders = {image.filename: image.filepath for image in images if image.filepath}
    return file._replace(aliases=_aliases(numbers), folders=folders)


class Results(BaseModel):
    """Fields read from the results of `evaluate`."""

    captions: dict[str, str]
    references: dict[str, list[str]]


def read_results(path: Path) -> CaptionFile:
    """Read a results file of `evaluate`: generated captions and reference captions."""
    results = check_layout(parse_json(read_text(path), str(path)), Results, f"{path} is not in evaluate's layout")
    captions = {image: [caption] for image, caption in results.captions.items()}
    return CaptionFile("evaluate's results", captions, references=results.references)


def _refuse_duplicates(names: Iterable[str], path: Path) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{path}: image {twice} is listed more than once; keep one of its entries")


def _aliases(names: Mapping[str, str]) -> dict[str, str]:
    """Return the aliases that are not also names of images."""
    image_names = set(names.values())
    return {alias: name for alias, name in names.items() if alias not in image_names}
