"""Caption files in JSON: COCO's, Karpathy's, results of `evaluate`, JSON lines and other lists of objects."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from showattendtell.data.parsing import (
    CaptionEntry,
    CaptionFile,
    check_layout,
    collect,
    find_columns,
    holds_split,
    parse_json,
    refuse_columns,
)
from showattendtell.errors import UserError


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


ImageName = Annotated[str, Field(coerce_numbers_to_str=True, min_length=1), BeforeValidator(_whole)]
"""A name, or a number as in COCO, which pandas may write as 42.0."""


def _as_list(said: Any) -> Any:
    """Return captions as a list: of one caption, or of several, each a text or an object such as `{"caption": ...}`."""
    if isinstance(said, list):
        return [caption for one in said for caption in ([one] if isinstance(one, str) else _as_list(one))]
    if said is None:
        return []
    columns = find_columns(("image", *said)) if isinstance(said, dict) else None
    return _as_list(said[columns[1][0]]) if columns else [said]


Said = Annotated[list[str], BeforeValidator(_as_list)]


def read_record(record: Any, origin: str) -> CaptionEntry:
    """Read an object with an image, one or several captions, and other fields, such as a split."""
    fields = check_layout(record, dict[str, Any], origin)
    columns = find_columns(tuple(fields))
    if columns is None:
        raise refuse_columns(fields, origin)
    image = check_layout(fields.pop(columns[0]), ImageName, f"{origin}, {columns[0]}")
    captions = [check_layout(fields.pop(name), Said, f"{origin}, {name}") for name in columns[1]]
    return origin, image, [caption for said in captions for caption in said], fields


def _read_records(records: Any, path: Path) -> list[CaptionEntry]:
    records = check_layout(records, list[Any], str(path))
    return [read_record(record, f"{path}, {number}") for number, record in enumerate(records)]


def read_json_lines(path: Path, text: str) -> CaptionFile:
    """Read lines such as `{"image": "a.jpg", "caption": "a dog"}`; or `captions` with a list, and `split`."""
    lines = ((f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
    return collect("JSON lines", (read_record(parse_json(line, origin), origin) for origin, line in lines), path)


@dataclass(slots=True)
class Results:
    """Fields read from the results of `evaluate`."""

    captions: dict[str, str]
    references: dict[str, list[str]]


def read_json(path: Path, text: str) -> CaptionFile:
    """Read JSON of one of these layouts.

    - a list of objects, such as COCO's results, `[{"image_id": 1, "caption": "a dog"}, ...]`;
    - COCO's captions, Karpathy's, and the results of `evaluate`;
    - captions by image, such as pycocoevalcap's `gts` and `res`: `{"1": ["a dog"], "2": [{"caption": "a cat"}]}`;
    - a table by column, as pandas writes it; or objects in one field, as in `{"annotations": [...]}`.

    Raises:
        UserError: the file has another layout.
    """
    content = parse_json(text, str(path))
    if content in ([], {}):
        raise UserError(f"{path} has no captions")
    if isinstance(content, list):
        return collect("COCO results", _read_records(content, path), path)
    content = check_layout(content, dict[str, Any], str(path))
    if {"captions", "references"} <= content.keys():
        results = check_layout(content, Results, f"{path} is not in evaluate's layout")
        generated = {image: [caption] for image, caption in results.captions.items()}
        return CaptionFile("evaluate's results", generated, references=results.references)
    if {"images", "annotations"} <= content.keys():
        return _read_coco(path, content)
    if isinstance(content.get("images"), list):
        return _read_karpathy(path, content["images"])
    columns = find_columns(tuple(content))
    if columns and all(isinstance(column, dict | list) for column in content.values()):
        by_row = {n: column if isinstance(column, dict) else dict(enumerate(column)) for n, column in content.items()}
        rows = [{name: column.get(row) for name, column in by_row.items()} for row in by_row[columns[0]]]
        return collect("JSON", _read_records(rows, path), path)
    lists = [value for value in content.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(lists) == 1 and find_columns(tuple(lists[0][0])):
        return collect("JSON", _read_records(lists[0], path), path)
    known = "COCO's captions and results, Karpathy's, evaluate's, and captions by image"
    captions = check_layout(content, dict[str, Said], f"{path} is JSON of no known layout; known are {known}")
    return CaptionFile("captions by image", captions)


@dataclass(slots=True)
class CocoImage:
    id: ImageName
    file_name: str | None = None


def _read_coco(path: Path, content: dict[str, Any]) -> CaptionFile:
    """Read COCO's reference captions. Images have the names of their files, and their numbers as aliases."""
    layout = f"{path} is not in COCO's layout"
    images, annotations = content.pop("images"), content.pop("annotations")
    if holds_split(content):
        raise UserError(f"{path} has splits outside of its images; write the split of each image into its entry")
    checked = check_layout(images, list[CocoImage], layout)
    names = {image.id: image.file_name or image.id for image in checked}
    _refuse_duplicates((image.id for image in checked), path)
    _refuse_duplicates(names.values(), path)
    kept = list[CaptionEntry]()
    rejected = set[str]()  # by VizWiz, for a photograph that shows too little
    for origin, number, captions, fields in _read_records(annotations, path):
        if number not in names:
            raise UserError(f"{path} has a caption for image {number}, which it does not list; add it to its images")
        if fields.get("is_rejected"):
            rejected.add(names[number])
        else:
            kept.append((origin, names[number], captions, fields))
    rejected -= {image for _, image, _, _ in kept}
    entries = list[CaptionEntry]()  # images without captions have one too
    for (number, name), fields in zip(names.items(), images, strict=True):
        if name not in rejected:
            entries.append((f"{path}, image {number}", name, [], fields))
    left_out = len(annotations) - len(kept)
    notes = (f"captions that {path.name} marks as rejected are left out: {left_out:,}",) if left_out else ()
    return collect("COCO captions", entries + kept, path)._replace(aliases=_aliases(names), notes=notes)


def _read_karpathy(path: Path, images: list[Any]) -> CaptionFile:
    """Read Karpathy's JSON, with its splits and folders. Aliases are the numbers in COCO, or else in the file."""
    entries = _read_records(images, path)
    _refuse_duplicates((image for _, image, _, _ in entries), path)
    numbers, folders = dict[str, str](), dict[str, str]()
    for _, image, _, fields in entries:
        number = fields.get("cocoid", fields.get("imgid"))
        if number is not None:
            numbers[str(number)] = image
        if fields.get("filepath"):
            folders[image] = str(fields["filepath"])
    return collect("Karpathy's JSON", entries, path)._replace(aliases=_aliases(numbers), folders=folders)


def _refuse_duplicates(names: Iterable[str], path: Path) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{path}: image {twice} is listed more than once; keep one of its entries")


def _aliases(names: dict[str, str]) -> dict[str, str]:
    """Return the aliases that are not also names of images."""
    image_names = set(names.values())
    return {alias: name for alias, name in names.items() if alias not in image_names}
