"""Readers of caption files in JSON: COCO's, Karpathy's, JSON lines and the results of `evaluate`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from showattendtell.data.parsing import (
    CaptionEntry,
    CaptionFile,
    check_layout,
    collect,
    find_columns,
    parse_json,
    read_json,
    read_text,
    refuse_columns,
)
from showattendtell.errors import UserError


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


Fields = Mapping[str, Any] | None
"""The fields of an object that may have its split, by `read_json`."""


ImageName = Annotated[str, Field(coerce_numbers_to_str=True, min_length=1), BeforeValidator(_whole)]
"""A name, or a number as in COCO, which pandas may write as 42.0."""


def _as_list(said: Any) -> Any:
    """Return captions as a list: of one caption, or of several, each a text or an object such as `{"caption": ...}`."""
    if isinstance(said, list):
        return [caption for one in said for caption in ([one] if isinstance(one, str) else _as_list(one))]
    if said is None:
        return []
    columns = find_columns(["image", *said]) if isinstance(said, dict) else None
    return _as_list(said[columns[1][0]]) if columns else [said]


Said = Annotated[list[str], BeforeValidator(_as_list)]


def read_record(record: Any, origin: str) -> CaptionEntry:
    """Read an object with an image, one or several captions, and other fields, such as a split."""
    fields = check_layout(record, dict[str, Any], origin)
    columns = find_columns(fields)
    if columns is None:
        raise refuse_columns(fields, origin)
    image = check_layout(fields.pop(columns[0]), ImageName, f"{origin}, {columns[0]}")
    captions = [check_layout(fields.pop(name), Said, f"{origin}, {name}") for name in columns[1]]
    return origin, image, [caption for said in captions for caption in said], fields


def read_json_lines(path: Path) -> CaptionFile:
    """Read lines such as `{"image": "a.jpg", "caption": "a dog"}`; or `captions` with a list, and `split`."""
    lines = ((f"{path}, line {n}", line) for n, line in enumerate(read_text(path).split("\n"), start=1) if line.strip())
    return collect("JSON lines", (read_record(parse_json(line, origin), origin) for origin, line in lines), path)


def read_coco_results(path: Path) -> CaptionFile:
    """Read `[{"image_id": 1, "caption": "a dog"}, ...]`."""
    records = check_layout(parse_json(read_text(path), str(path)), list[Any], f"{path} is not in COCO's results layout")
    return collect("COCO results", (read_record(record, f"{path}, {i}") for i, record in enumerate(records)), path)


def read_mapping(path: Path) -> CaptionFile:
    """Read captions by image, such as pycocoevalcap's `gts` and `res`: `{"1": ["a dog"], "2": [{"caption": "a cat"}]}`;
    a table by column, as pandas writes it; or records in one field, as in `{"annotations": [...]}`.

    Raises:
        UserError: the file has another layout.
    """
    content = check_layout(parse_json(read_text(path), str(path)), dict[str, Any], str(path))
    records = [value for value in content.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    columns = find_columns(content)
    if columns and all(isinstance(column, dict | list) for column in content.values()):
        by_row = {
            name: column if isinstance(column, dict) else dict(enumerate(column)) for name, column in content.items()
        }
        records = [[{name: column.get(row) for name, column in by_row.items()} for row in by_row[columns[0]]]]
    if len(records) == 1 and find_columns(records[0][0]):
        return collect("JSON", (read_record(record, f"{path}, {i}") for i, record in enumerate(records[0])), path)
    known = "COCO's captions and results, Karpathy's, evaluate's, and captions by image"
    message = f"{path} is JSON of no known layout; known are {known}"
    return CaptionFile(
        "captions by image", {image: check_layout(said, Said, message) for image, said in content.items()}
    )


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
    is_rejected: bool = False  # by VizWiz, for a photograph that shows too little


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
    kept = [annotation for annotation in content.annotations if not annotation.is_rejected]
    rejected = {said.image_id for said in content.annotations} - {said.image_id for said in kept}
    # images without captions have an entry too
    records: list[tuple[str, str, Fields]] = [
        (image.id, "", image.split_fields) for image in content.images if image.id not in rejected
    ]
    records += [(said.image_id, said.caption, said.split_fields) for said in kept]
    entries: list[CaptionEntry] = []
    for number, caption, fields in records:
        captions = [caption] if caption else []
        entries.append((f"{path}, image {number}", names[number], captions, {**fields_of[number], **(fields or {})}))
    left_out = len(content.annotations) - len(kept)
    notes = (f"captions that {path.name} marks as rejected are left out: {left_out:,}",) if left_out else ()
    return collect("COCO captions", entries, path)._replace(aliases=_aliases(names), notes=notes)


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
