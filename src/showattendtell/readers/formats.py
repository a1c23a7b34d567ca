"""Caption files: the detection of their formats, and a reader of each, most of which give records for `collect`."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from io import StringIO
from pathlib import Path, PurePath
from typing import Any

from showattendtell.errors import UserError
from showattendtell.images.limits import SUFFIXES
from showattendtell.runtime.files import expand_home
from showattendtell.runtime.process import paused_collection
from showattendtell.text.parsing import (
    CaptionFile,
    Entry,
    ImageName,
    check_layout,
    collect,
    find_columns,
    parse_json,
    read_record,
    read_text,
    refuse_columns,
)

PLAIN = "plain lines"

TOKEN = re.compile(r"([^\t]+?)(?:#\d+\t|#zh\w*#\d+[ \t])")
"""What is before a caption in Flickr's token files, `name.jpg#0<TAB>`, and in Flickr8k-CN, `name#zhc#0 `."""


def find_caption_files(patterns: str | Sequence[str]) -> list[Path]:
    """Return the files that paths and patterns such as `ref*` match, each once.

    Raises:
        UserError: a pattern matches no file.
    """
    files: dict[Path, None] = {}
    for name in [patterns] if isinstance(patterns, str) else patterns:
        path = expand_home(name)
        is_file = path.exists() or not set(name) & set("*?[")
        matches = [path] if is_file else sorted(map(Path, glob(str(path), recursive=True)))
        if not matches:
            raise UserError(f"no file matches {name}")
        files |= dict.fromkeys(matches)
    return list(files)


def read_all(paths: Iterable[Path]) -> dict[Path, CaptionFile]:
    """Read each file once. Raise one `UserError` with the errors of all files."""
    files, errors = {}, []
    for path in paths:
        try:
            files[path] = read_captions(path)
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; ".join(errors))
    return files


@paused_collection()
def read_captions(path: Path) -> CaptionFile:
    """Read a caption file of any supported format, which its suffix or its first line decides.

    Raises:
        UserError: the file is empty, damaged or of an unknown format.
    """
    suffix, text = path.suffix.lower(), read_text(path)
    first_text_line = re.search(r"\S.*", text)
    if not first_text_line:
        raise UserError(f"{path} is empty")
    first, has_more = first_text_line[0], bool(text[first_text_line.end() :].strip())
    if suffix in (".jsonl", ".ndjson") or (has_more and re.fullmatch(r"\{\s*\".*\}\s*", first)):
        lines = ((f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
        return collect("JSON lines", (read_record(parse_json(line, origin), origin) for origin, line in lines), path)
    if suffix == ".json" or re.match(r"\{\s*(\"|$)|\[\s*(\{|$)", first):
        return _read_json(path, text)
    if suffix == ".token" or TOKEN.match(first):
        return collect("Flickr's token file", _token_entries(path, text), path)
    if suffix in (".csv", ".tsv") or find_delimiter(first[:1000]):
        return _read_table(path, text)
    if "\t" in first:
        raise UserError(
            f"{path} is in no known format: its first line has tabs, but it is not a header with the columns image "
            "and caption and does not begin with 'name.jpg#0'"
        )
    # line i belongs to image i, even if it is empty
    plain = enumerate(text.removesuffix("\n").split("\n"), start=1)
    return CaptionFile(PLAIN, {f"line {i}": [line] for i, line in plain})


def _token_entries(path: Path, text: str) -> Iterator[Entry]:
    for i, line in enumerate(text.split("\n"), start=1):
        match = TOKEN.match(line)
        caption = line[match.end() :] if match else ""
        if match and caption.strip() and "\t" not in caption:
            yield Entry(f"{path}, line {i}", match[1], [caption], {})
        elif line.strip():
            raise UserError(f"{path}, line {i}: expected 'name.jpg#0<TAB>caption', got '{line[:60]}'")


def parse_rows(text: str, delimiter: str, quoting: Any = csv.QUOTE_MINIMAL) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table with the number of their first line; blank lines are skipped.

    Raises:
        ValueError: a quote does not close.
    """
    lines, first = StringIO(text, newline="\n"), 1
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True, quoting=quoting)
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield first, cells
            first = rows.line_num + 1
    except csv.Error:
        advice = "put the whole cell into quotes, and double each quote within it"
        raise ValueError(f"line {first}: a quote does not close; {advice}") from None


def find_delimiter(header: str) -> str | None:
    """Return the delimiter of a table, given its first line; None if it has no columns of images and captions."""
    for delimiter in ",\t;|":
        with suppress(ValueError):
            if any(_named(columns) for _, columns in parse_rows(header.strip(), delimiter)):
                return delimiter
    return None


def _named(columns: list[str]) -> list[str] | None:
    """Return the names of a table's columns, given its first row; None if it has none of images and captions."""
    if len(columns) == 2 and PurePath(columns[0]).suffix.lower() in SUFFIXES:
        return ["image", "caption"]  # a table without header
    return columns if find_columns(tuple(columns)) else None


def _read_table(path: Path, text: str) -> CaptionFile:
    """Read a table with a column of images, one or several of captions, and optionally one of splits.

    The delimiter is a comma, a tab, a semicolon or a vertical line. A table of two columns needs no header. In the last
    column a caption may have commas without quotes.
    """
    text = re.sub(r"\A\s*sep=.\n", "\n", text)  # for Excel
    header = text.lstrip().partition("\n")[0]
    delimiter = find_delimiter(header)
    if not delimiter:
        raise refuse_columns([header[:60]], f"{path}, line 1")
    try:
        rows = list(parse_rows(text, delimiter))
    except ValueError as error:
        if delimiter != "\t":
            raise UserError(f"{path}, {error}") from None
        rows = list(parse_rows(text, delimiter, csv.QUOTE_NONE))  # a quote is a character
    names = _named(rows[0][1]) or []
    if len({name.lower() for name in names}) < len(names):
        raise UserError(f"{path}, line 1: two columns have one name; rename one")
    columns, entries = find_columns(tuple(names)), []
    ends_with_caption, last = columns is not None and columns[1] == names[-1:], len(names) - 1
    for line, cells in rows[names == rows[0][1] :]:
        if len(cells) > len(names) and ends_with_caption and delimiter != "\t":  # commas in the caption
            cells[last:] = [f"{delimiter} ".join(cells[last:])]
        elif len(cells) == last and delimiter == "|":  # as in a line of Kaggle's Flickr30k: `a.jpg| 4   A dog`
            cells[-1:] = re.split(r"\s{2,}", cells[-1], maxsplit=1)
        if len(cells) != len(names):
            raise UserError(
                f"{path}, line {line}: {len(cells)} cells in {len(names)} columns; put a caption that has a comma or "
                "a quote into double quotes"
            )
        entry = read_record(dict(zip(names, cells, strict=True)), f"{path}, line {line}")
        if any(_has_rows(caption, entry.image, delimiter) for caption in entry.captions):
            raise UserError(
                f"{path}, line {line}: a caption of several lines has the name of an image, so its quotes may enclose "
                "rows; double them and put the caption into quotes, or remove them"
            )
        entries.append(entry)
    return collect("CSV", entries, path)


def _has_rows(caption: str, image: str, delimiter: str) -> bool:
    """Return whether a caption of several lines has a cell with the suffix of the image, or a number if it has none."""
    suffix = PurePath(image).suffix
    cells = re.split(rf"\s*[{delimiter}\n]\s*", caption) if "\n" in caption else []
    return any(cell.endswith(suffix) if suffix else cell.isdecimal() for cell in cells)


def _read_records(records: Any, path: Path) -> list[Entry]:
    records = check_layout(records, list[Any], str(path))
    return [read_record(record, f"{path}, {number}") for number, record in enumerate(records)]


@dataclass(slots=True)
class Results:
    """Fields read from the results of `evaluate`."""

    captions: dict[str, str]
    references: dict[str, list[str]]


def _read_json(path: Path, text: str) -> CaptionFile:
    """Read JSON of one of these layouts.

    - a list of objects, such as COCO's results, `[{"image_id": 1, "caption": "a dog"}, ...]`;
    - COCO's captions, Karpathy's, and the results of `evaluate`;
    - captions by image, such as pycocoevalcap's `gts` and `res`: `{"1": ["a dog"], "2": [{"caption": "a cat"}]}`;
    - objects in one field, as in `{"annotations": [...]}`.

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
    return collect("JSON", _read_records(_find_records(content, path), path), path)


def _find_records(content: dict[str, Any], path: Path) -> list[Any]:
    """Return the records in a field, or those of captions by image."""
    lists = [value for value in content.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(lists) == 1 and find_columns(tuple(lists[0][0])):
        return lists[0]
    if not all(isinstance(said, str | list | dict) for said in content.values()):
        known = "COCO's captions and results, Karpathy's, evaluate's, and captions by image"
        raise UserError(f"{path} is JSON of no known layout; known are {known}")
    by_image = content.items()
    return [{"image": image, **(said if isinstance(said, dict) else {"captions": said})} for image, said in by_image]


@dataclass(slots=True)
class CocoImage:
    id: ImageName
    file_name: str | None = None


def _read_coco(path: Path, content: dict[str, Any]) -> CaptionFile:
    """Read COCO's reference captions. Images have the names of their files, and their numbers as aliases."""
    images, annotations = content["images"], content["annotations"]
    checked = check_layout(images, list[CocoImage], f"{path} is not in COCO's layout")
    names = {image.id: image.file_name or image.id for image in checked}
    _refuse_duplicates([image.id for image in checked], path)
    _refuse_duplicates(names.values(), path)
    named = zip(names.values(), images, strict=True)
    entries = [Entry(f"{path}, image {name}", name, [], fields) for name, fields in named]
    for entry in _read_records(annotations, path):
        if entry.image not in names:
            raise UserError(f"{path} has a caption for image {entry.image}, which it does not list; add it to images")
        if not entry.fields.get("is_rejected"):  # by VizWiz, as the photograph shows too little
            entries.append(entry._replace(image=names[entry.image]))
    left_out = len(images) + len(annotations) - len(entries)
    notes = (f"captions that {path.name} marks as rejected are left out: {left_out:,}",) if left_out else ()
    return collect("COCO captions", entries, path)._replace(aliases=_aliases(names), notes=notes)


def _read_karpathy(path: Path, images: list[Any]) -> CaptionFile:
    """Read Karpathy's JSON, with its splits and folders. Aliases are the numbers in COCO, or else in the file."""
    entries = _read_records(images, path)
    _refuse_duplicates([entry.image for entry in entries], path)
    numbers = {str(fields.get("cocoid", fields.get("imgid"))): image for _, image, _, fields in entries}
    numbers.pop("None", None)
    folders = {image: str(fields["filepath"]) for _, image, _, fields in entries if fields.get("filepath")}
    return collect("Karpathy's JSON", entries, path)._replace(aliases=_aliases(numbers), folders=folders)


def _refuse_duplicates(names: Iterable[str], path: Path) -> None:
    [(name, count)] = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(f"{path}: image {name} is listed more than once; keep one of its entries")


def _aliases(names: dict[str, str]) -> dict[str, str]:
    """Return the aliases that are not also names of images."""
    return {alias: names[alias] for alias in names.keys() - set(names.values())}
