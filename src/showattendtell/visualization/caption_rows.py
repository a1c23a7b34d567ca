"""Captions as data: JSON lines and CSV with a row for each caption, written as the captions are generated."""

import csv
import json
from collections.abc import Callable, Collection, Iterable
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from showattendtell.types import CaptionOutput
from showattendtell.visualization.result_files import write_errors

DIGITS = 6
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that spreadsheets evaluate (OWASP, CSV injection)."""


class CaptionRow(NamedTuple):
    """A caption of a photograph.

    file        path or URL of the photograph
    log_prob    log p of the caption
    confidence  in the caption, 0 to 1
    unsure      whether the photograph is unlike those that a calibrated model was trained on
    checkpoint  the model; the checkpoints of an ensemble are joined by ` + `
    """

    file: str
    caption: str
    log_prob: float
    confidence: float
    unsure: bool
    checkpoint: str

    @classmethod
    def of(cls, file: str, caption: CaptionOutput[np.ndarray], checkpoint: str) -> "CaptionRow":
        log_prob, confidence = round(caption.log_prob, DIGITS), round(caption.confidence, DIGITS)
        return cls(file, caption.caption, log_prob, confidence, caption.unsure, checkpoint)


def json_line(row: CaptionRow) -> str:
    return json.dumps(row._asdict(), ensure_ascii=False) + "\n"


def csv_line(cells: Iterable[object]) -> str:
    """Return a line of CSV. A text that a spreadsheet would evaluate as a formula gets an apostrophe in front."""
    safe = [f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in cells]
    line = StringIO()
    csv.writer(line, lineterminator="\n").writerow(safe)
    return line.getvalue()


FORMATS: dict[str, Callable[[CaptionRow], str]] = {"jsonl": json_line, "csv": csv_line}
"""The formats of rows by the suffix of their file."""

HEADERS = {"jsonl": "", "csv": csv_line(CaptionRow._fields)}

BEGINNINGS = {"jsonl": '{"file": ', "csv": "file,caption,"}
"""How the files begin, of whatever version."""


def row_file(folder: Path, suffix: str) -> Path:
    return folder / f"captions.{suffix}"


def row_writer(folder: Path, formats: Collection[str]) -> Callable[[CaptionRow], None]:
    """Return a function that appends a row to `captions.jsonl`, `captions.csv` or both in a folder.

    The first row replaces earlier files. When the function returns, the row is in the files. It raises a `UserError` if
    a file cannot be written.

    Args:
        formats: suffixes of the files; those of other files are ignored.
    """
    begun = set[str]()

    def write(row: CaptionRow) -> None:
        for suffix in FORMATS.keys() & formats:
            path, line = row_file(folder, suffix), FORMATS[suffix](row)
            mode, text = ("a", line) if suffix in begun else ("w", HEADERS[suffix] + line)
            # file names may have bytes that are not UTF-8; in JSON, `\udcff` is an escape of such a byte
            with (
                write_errors(path, "output to another folder"),
                path.open(mode, encoding="utf-8", errors="backslashreplace", newline="") as file,
            ):
                file.write(text)
            begun.add(suffix)

    return write
