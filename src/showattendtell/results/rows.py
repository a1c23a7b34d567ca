"""Captions as data: JSON lines and CSV with a row for each caption, written as the captions are generated."""

import csv
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

import numpy as np

from showattendtell.errors import UserError
from showattendtell.runtime.files import exists_error, open_regular, read_regular, write_errors
from showattendtell.types import CaptionOutput

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that spreadsheets evaluate (OWASP, CSV injection)."""


class CaptionRow(NamedTuple):
    """A caption of a photograph.

    file        path or URL of the photograph
    log_prob    log p of the caption
    confidence  in the caption, 0 to 1
    not_sure    whether the photograph is unlike those that the model was trained on
    is_calibrated  whether the model is, without which confidence is too high and not_sure is false
    checkpoint  the model; the checkpoints of an ensemble are joined by ` + `
    settings    checksum of the models and settings of the command, for `resume=true`
    """

    file: str
    caption: str
    log_prob: float
    confidence: float
    not_sure: bool
    is_calibrated: bool
    checkpoint: str
    settings: str

    @classmethod
    def of(
        cls, file: str, caption: CaptionOutput[np.ndarray], checkpoints: Iterable[str], settings: str
    ) -> "CaptionRow":
        rounded = round(caption.log_prob, 6), round(caption.confidence, 6)
        doubt = caption.not_sure, caption.is_calibrated
        return cls(file, caption.caption, *rounded, *doubt, " + ".join(checkpoints), settings)


BEGINNING = b'{"file": '
"""How a line of JSON begins."""

HEADER = f"{','.join(CaptionRow._fields)}\n".encode()
"""The first line of CSV."""


def row_file(folder: Path, suffix: str) -> Path:
    return folder / f"captions.{suffix}"


class OutputFormat(Protocol):
    """A file of rows, which `formats=` of `caption` names: one of `ROWS`, or an option of the config group `format`.

    Args:
        folder: of the file.
    """

    def __init__(self, folder: Path) -> None: ...

    def write(self, rows: Sequence[CaptionRow]) -> None:
        """Write the rows of a photograph. Raise `UserError` if they cannot be written."""

    def close(self) -> None:
        """Complete the file, also after an error or an interruption."""
        return


class JsonLines(OutputFormat):
    """A JSON object per line, in `captions.jsonl`."""

    def __init__(self, folder: Path):
        self._path = row_file(folder, "jsonl")

    def write(self, rows: Sequence[CaptionRow]) -> None:
        with _appending(self._path) as file:
            file.writelines(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows)


class CsvTable(OutputFormat):
    """Lines below a header, in `captions.csv`. A text that a spreadsheet would evaluate as a formula gets an apostrophe
    in front."""

    def __init__(self, folder: Path):
        self._path = row_file(folder, "csv")

    def write(self, rows: Iterable[CaptionRow]) -> None:
        with _appending(self._path) as file:
            writer = csv.writer(file, lineterminator="\n")
            if not file.tell():
                writer.writerow(CaptionRow._fields)
            for row in rows:
                writer.writerow(
                    f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in row
                )


ROWS: dict[str, type[OutputFormat]] = {"csv": CsvTable, "jsonl": JsonLines}
"""The formats of rows that this module writes; jsonl, which resuming reads, comes last."""


@contextmanager
def _appending(path: Path) -> Iterator[TextIO]:
    """Open a file for further lines, also with file names of bytes that are no text, which become escapes of JSON."""
    is_begun = row_file(path.parent, "jsonl").exists()
    advice = f"free some space; output={path.parent} resume=true continues" if is_begun else "choose another place"
    text = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
    with write_errors(path, advice), open_regular(path, "a", **text) as file:
        yield file


def can_resume(formats: Collection[str]) -> bool:
    """Return whether an interrupted command that writes these formats can be resumed."""
    return "jsonl" in formats and {*formats} <= {*ROWS}


def resume_rows(folder: Path, formats: Collection[str], settings: str) -> set[str]:
    """Prepare the files of an interrupted command for further rows, and return the photographs that they have.

    An incomplete line at the end of `captions.jsonl` is removed, and so are the rows of the last photograph if it has
    fewer of them than others. `captions.csv` is written again from `captions.jsonl`.

    Args:
        settings: the checksum that all rows must have.

    Raises:
        UserError: `captions.jsonl` has other rows or is damaged, or a file cannot be written.
    """
    journal = row_file(folder, "jsonl")
    if not journal.exists():
        return set()
    rows_of = Counter[str]()
    last, start, end = "", 0, 0  # the last photograph, and where its lines start and end, in bytes
    with open_regular(journal) as lines:
        for row, line in _rows(journal, lines):
            if row.settings != settings:
                raise UserError(
                    f"{journal} has captions by another model or with other settings; set output to another folder"
                )
            if row.file != last:
                last, start = row.file, end
            rows_of[row.file] += 1
            end += len(line)
    if rows_of and rows_of[last] < max(rows_of.values()):
        end = start
        del rows_of[last]
    with write_errors(journal), open_regular(journal, "r+b") as file:
        file.truncate(end)
    if "csv" in formats:
        table = row_file(folder, "csv")
        if table.exists() and not HEADER.startswith(read_regular(table)[: len(HEADER)]):
            raise exists_error(table)
        table.unlink(missing_ok=True)
        with open_regular(journal) as lines:
            CsvTable(folder).write(row for row, _ in _rows(journal, lines))
    return set(rows_of)


def _rows(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[CaptionRow, bytes]]:
    """Yield each row of JSON lines with its line, up to a line that is incomplete.

    Raises:
        UserError: a complete line is not a row of captions.
    """
    for i, line in enumerate(lines, start=1):
        if not line.endswith(b"\n") and line.startswith(BEGINNING[: len(line)]):
            return
        try:
            row = CaptionRow(**json.loads(line))
            is_row = isinstance(row.file, str)
        except (ValueError, TypeError, RecursionError):
            is_row = False
        if not is_row:
            raise UserError(f"line {i} of {path} is not a row of captions; set output to another folder")
        yield row, line
