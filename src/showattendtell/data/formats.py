"""Caption files: the detection of their formats, and the readers of text and tables."""

import json
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path, PurePath
from typing import Any

from showattendtell.data.image_limits import SUFFIXES
from showattendtell.data.json_formats import read_json, read_json_lines
from showattendtell.data.parsing import (
    CaptionEntry,
    CaptionFile,
    Sentences,
    collect,
    find_columns,
    read_list,
    read_text,
    refuse_columns,
)
from showattendtell.errors import UserError, first_line
from showattendtell.runtime.files import expand_home
from showattendtell.runtime.memory import paused_collection

PLAIN = "plain lines"

FRAMES = {
    ".xlsx": ("read_excel", "openpyxl"),
    ".xlsm": ("read_excel", "openpyxl"),
    ".parquet": ("read_parquet", "pyarrow"),
    ".pq": ("read_parquet", "pyarrow"),
    ".feather": ("read_feather", "pyarrow"),
}
"""By suffix of a table that pandas reads: its function, and the package that it needs for it."""

PICKLES = (".pkl", ".pickle")

LINE_ALIGNED = re.compile(r"train(\.\d)?(\.[a-z]{2})")
"""Names of Multi30k's training captions: `train.de`, or `train.1.de` of several."""

ALIGNED_SPLITS = {"train": ["train"], "val": ["val"], "test": ["test_2016_flickr", "test_2016", "test"]}
"""Names of the files of each split in Multi30k, the first that exists."""

_FLICKR8K_CN = re.compile(r"(\S+)#zh\w*#(\d+)[ \t]")


def find_caption_files(patterns: str | Sequence[str]) -> list[Path]:
    """Return the files that paths and patterns such as `ref*` match, each once.

    Raises:
        UserError: a pattern matches no file.
    """
    files: list[Path] = []
    for name in [patterns] if isinstance(patterns, str) else patterns:
        path = expand_home(name)
        is_file = path.exists() or not set(name) & set("*?[")
        matches = [path] if is_file else sorted(map(Path, glob(str(path), recursive=True)))
        if not matches:
            raise UserError(f"no file matches {name}")
        files += matches
    return list(dict.fromkeys(files))


def read_all(paths: Iterable[Path]) -> dict[Path, CaptionFile]:
    """Read each file once. Raise one `UserError` with the errors of all files."""
    files, errors = {}, []
    for path in dict.fromkeys(paths):
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
    suffix = path.suffix.lower()
    if suffix in FRAMES and path.is_file():
        return _read_frame(path)
    if suffix in PICKLES:
        raise UserError(f"{path} is a pickle, which may run a program; save it with pandas as captions.csv")
    text = read_text(path)
    first_text_line = re.search(r"\S.*", text)
    if not first_text_line:
        raise UserError(f"{path} is empty")
    first, follows = first_text_line[0], re.compile(r"\S").search(text, first_text_line.end())
    if suffix in (".jsonl", ".ndjson") or (follows and re.fullmatch(r"\{\s*\".*\}\s*", first)):
        return read_json_lines(path, text)
    if suffix == ".json" or re.match(r"\{\s*(\"|$)|\[\s*(\{|$)", first):
        return read_json(path, text)
    if suffix == ".token" or re.match(r"[^\t]+#\d+\t", first) or _FLICKR8K_CN.match(first):
        return _read_tokens(path, text)
    if suffix in (".csv", ".tsv") or find_delimiter(first[:1000]):
        return _read_table(path, text)
    if LINE_ALIGNED.fullmatch(path.name):
        return _read_line_aligned(path)
    return _read_plain_lines(path, text)


def _read_plain_lines(path: Path, text: str) -> CaptionFile:
    """Read one caption per line. Line i belongs to image i, even if it is empty."""
    lines = text.removesuffix("\n").split("\n")
    if "\t" in lines[0]:
        raise UserError(
            f"{path} is in no known format: its first line has tabs, but it is not a header with the columns image "
            "and caption and does not begin with 'name.jpg#0'"
        )
    return CaptionFile(PLAIN, {f"line {i}": [line] for i, line in enumerate(lines, start=1)})


def _read_tokens(path: Path, text: str) -> CaptionFile:
    """Read Flickr's token file, with lines `name.jpg#0<TAB>caption`, or Flickr8k-CN's, `name#zhc#0 caption`."""
    sentences: Sentences = {}
    for i, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = re.fullmatch(r"([^\t]+)#\d+\t([^\t]+)", _FLICKR8K_CN.sub(r"\1#\2\t", line, count=1))
        if not match or not match[2].strip():
            raise UserError(f"{path}, line {i}: expected 'name.jpg#0<TAB>caption', got '{line[:60]}'")
        sentences.setdefault(match[1], []).append(match[2])
    return CaptionFile("Flickr's token file", sentences)


def _read_line_aligned(path: Path) -> CaptionFile:
    """Read Multi30k (Elliott et al. 2016): line i of `train.de` describes image i of a list of image names. With
    several captions the files are `train.1.de`, `train.2.de` and so on; `val` and `test_2016_flickr` likewise.

    Args:
        path: the training captions of a language, or the first of several such files.

    Raises:
        UserError: a list is missing, or has another number of lines than the captions.
    """
    match = LINE_ALIGNED.fullmatch(path.name)
    assert match
    pattern = f".[0-9]{match[2]}" if match[1] else match[2]
    sentences: Sentences = {}
    splits: dict[str, list[str]] = {}
    for split, prefixes in ALIGNED_SPLITS.items():
        prefix = next((prefix for prefix in prefixes if any(path.parent.glob(f"{prefix}{pattern}"))), None)
        if prefix is None:
            continue
        images = splits[split] = _aligned_images(path.parent, prefix)
        for file in sorted(path.parent.glob(f"{prefix}{pattern}")):
            lines = read_text(file).removesuffix("\n").split("\n")
            if len(lines) != len(images):
                raise UserError(
                    f"{file} has {len(lines):,} lines, and its list {len(images):,} images; line i describes image i"
                )
            for image, line in zip(images, lines, strict=True):
                sentences.setdefault(image, []).extend([line] if line.strip() else [])
    return CaptionFile("Multi30k's lines", sentences, splits=splits)


def _aligned_images(folder: Path, prefix: str) -> list[str]:
    """Return the image names of a split of Multi30k, from a list next to the captions or in `image_splits`."""
    names = (f"{prefix}_images.txt", f"{prefix}.txt")
    for place in (folder, folder.parent / "image_splits"):
        for name in names:
            if (place / name).is_file():
                return [image.partition("#")[0] for image in read_list(place / name)]
    raise UserError(f"{folder} has no list {' or '.join(names)} of the images of each line; copy Multi30k's there")


def parse_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table with the number of their first line; blank lines are skipped.

    A quote is a character, unless a whole cell is in quotes, with each quote inside of it doubled (RFC 4180).

    Raises:
        ValueError: a cell begins with a quote and is not in quotes; in a table with tabs such a quote is a character.
    """
    end = re.escape(delimiter)
    pattern = re.compile(rf'(?:[ ]*"((?:[^"]+|"")*+)"[ ]*|([^{end}\n]*))({end}|\n|\Z)')
    first, line, cells = 1, 1, list[str]()
    for cell in pattern.finditer(text):
        quoted, plain, ending = cell.groups()
        if quoted is None and delimiter != "\t" and plain.lstrip().startswith('"'):
            advice = "put the whole cell into quotes, and double each quote within it"
            raise ValueError(f"line {line}: a quote does not close; {advice}")
        cells.append(plain.strip() if quoted is None else quoted.replace('""', '"'))
        line += cell[0].count("\n")
        if ending == delimiter:
            continue
        if cells != [""]:
            yield first, cells
        first, cells = line, []


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
        raise UserError(f"{path}, {error}") from None
    names = _named(rows[0][1]) or []
    return _read_rows(path, names, rows[names == rows[0][1] :], delimiter)


def _read_rows(path: Path, names: list[str], rows: Iterable[tuple[int, list[str]]], delimiter: str) -> CaptionFile:
    """Read the rows of a table.

    Args:
        names: of the columns.
        rows: line and cells of each.
    """
    columns = find_columns(tuple(names))
    if columns is None:
        raise refuse_columns(names, str(path))
    if len({name.lower() for name in names}) < len(names):
        raise UserError(f"{path}, line 1: two columns have one name; rename one")

    def entries() -> Iterator[CaptionEntry]:
        for number, cells in rows:
            origin, excess = f"{path}, line {number}", len(cells) - len(names)
            if excess > 0 and columns[1] == names[-1:] and delimiter != "\t":  # commas in the caption
                cells[len(names) - 1 :] = [f"{delimiter} ".join(cells[len(names) - 1 :])]
            elif excess == -1 and delimiter == "|":  # as in a line of Kaggle's Flickr30k: `a.jpg| 4   A dog`
                cells[-1:] = re.split(r"\s{2,}", cells[-1], maxsplit=1)
            if len(cells) != len(names):
                raise UserError(
                    f"{origin}: {len(cells)} cells in {len(names)} columns; put a caption that has a comma or a quote "
                    "into double quotes"
                )
            row = dict(zip(names, cells, strict=True))
            image, written = row.pop(columns[0]), [row.pop(name) for name in columns[1]]
            if not image:
                raise UserError(f"{origin}: the column {columns[0]} is empty")
            captions = list[str]()
            for caption in written:
                _refuse_swallowed_rows(caption, PurePath(image).suffix, delimiter, path, number)
                captions += _list_in_cell(caption)
            yield origin, re.sub(r"#\d+$", "", image), captions[:1] + list(filter(None, captions[1:])), row

    return collect("CSV", entries(), path)


def _refuse_swallowed_rows(caption: str, suffix: str, delimiter: str, path: Path, number: int) -> None:
    """Raise `UserError` for a caption of several lines with the name of an image in a cell: two lone quotes enclose
    rows by accident."""
    if "\n" not in caption:
        return
    name = rf"\s*\S+{re.escape(suffix)}\s*" if suffix else r"\s*\d+\s*"  # without a suffix it is a number
    for line in caption.split("\n"):
        cells = line.split(delimiter)
        if len(cells) > 1 and any(re.fullmatch(name, cell) for cell in cells):
            last = number + caption.count("\n")
            raise UserError(
                f"{path}, line {number}: a caption begins with a quote and ends in line {last}, and the lines between "
                "are rows; double the quote and put the caption into quotes, or remove it"
            )


def _list_in_cell(cell: str) -> list[str]:
    """Return the captions of a cell, which may be a list of Python or JSON: `["A dog", "It barks"]`."""
    if re.match(r"\[\s*[\"']", cell) and cell.endswith("]"):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return [text for text in literal_eval(cell) if isinstance(text, str)]
    return [cell]


def _read_frame(path: Path) -> CaptionFile:
    """Read a table that pandas reads: the first sheet of an Excel file, Parquet or Feather.

    Raises:
        UserError: pandas is not installed or cannot read the file.
    """
    reader, package = FRAMES[path.suffix.lower()]
    try:
        import pandas

        frame = getattr(pandas, reader)(path)
    except ImportError:
        raise UserError(f"{path} needs pip install pandas {package}; or save it as captions.csv") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); save it as captions.csv") from None
    rows = frame.astype(object).where(frame.notna(), "").to_numpy().tolist()
    if rows and any(isinstance(cell, dict) for cell in rows[0]):
        raise UserError(f"{path} holds photographs; give what datasets.load_dataset reads from it to CustomDataModule")
    numbered = ((number, [_as_text(cell) for cell in row]) for number, row in enumerate(rows, start=2))
    return _read_rows(path, [str(name) for name in frame.columns], numbered, "\t")


def _as_text(cell: Any) -> str:
    """Return a cell as it would be in CSV; a list of captions as JSON."""
    is_list = hasattr(cell, "__len__") and not isinstance(cell, str | bytes)
    return json.dumps(list(cell)) if is_list else str(cell).strip()
