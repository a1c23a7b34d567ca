"""Rows of captions as JSON lines and CSV."""

import csv
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from showattendtell.errors import UserError
from showattendtell.results.rows import ROWS, CaptionRow, resume_rows


def append_rows(folder: Path, formats: Sequence[str], rows: Sequence[CaptionRow]) -> None:
    """As the command writes them: all files of a photograph's rows, then those of the next."""
    for file in (ROWS[name](folder) for name in ROWS if name in formats):
        file.write(rows)
        file.close()


ROW = CaptionRow("rome/a, b.jpg", 'a "café"', -1.5, 0.25, False, True, "flickr8k_soft", "0123")


@pytest.fixture
def written(tmp_path: Path) -> dict[str, bytes]:
    """The files of three photographs with two rows each, the first of which has a name that is not UTF-8."""
    write = partial(append_rows, tmp_path, ["jsonl", "csv"])
    for name in (os.fsdecode(b"\xff.jpg"), "b.jpg", "c.jpg"):
        write([ROW._replace(file=name, caption=f"a dog {number}") for number in range(2)])
    return {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_rows_resume_wherever_they_end_as_if_nothing_had_happened(tmp_path: Path, written: dict[str, bytes]):
    names, whole = [os.fsdecode(b"\xff.jpg"), "b.jpg", "c.jpg"], written["captions.jsonl"]
    lines = whole.splitlines(keepends=True)
    ends = [len(b"".join(lines[:number])) for number in range(len(lines) + 1)]
    for end in sorted({*ends, *(end - 1 for end in ends[1:]), *range(0, len(whole), 23)}):
        (tmp_path / "captions.jsonl").write_bytes(whole[:end])
        (tmp_path / "captions.csv").write_bytes(written["captions.csv"][:end])
        finished = resume_rows(tmp_path, ["jsonl", "csv"], "0123")
        complete = sum(end >= one for one in ends[1:])
        # a first photograph cut between its rows cannot be told from one that has a single row
        assert finished == set(names[: max(complete // 2, complete == 1)])
        rest = [name for name in names if name not in finished]
        if complete != 1:
            write = partial(append_rows, tmp_path, ["jsonl", "csv"])
            for name in rest:
                write([ROW._replace(file=name, caption=f"a dog {number}") for number in range(2)])
            assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == written


def test_rows_of_other_settings_are_not_resumed(tmp_path: Path, written: dict[str, bytes]):
    with pytest.raises(UserError, match="by another model or with other settings; set output to another folder"):
        resume_rows(tmp_path, ["jsonl"], "4567")
    assert (tmp_path / "captions.jsonl").read_bytes() == written["captions.jsonl"]


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"file": "a.jpg"}', json.dumps({**ROW._asdict(), "file": [1]})])
def test_a_line_that_is_no_row_is_reported(tmp_path: Path, line: str):
    (tmp_path / "captions.jsonl").write_text(f"{json.dumps(ROW._asdict())}\n{line}\n")
    with pytest.raises(UserError, match="line 2 of .*captions.jsonl is not a row of captions"):
        resume_rows(tmp_path, ["jsonl"], "0123")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_formula_is_no_formula_in_a_spreadsheet(tmp_path: Path, text: str):
    append_rows(tmp_path, ["csv"], [ROW._replace(caption=text)])
    with (tmp_path / "captions.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["caption"], row["log_prob"]) == (f"'{text}", "-1.5")


@pytest.mark.parametrize(
    ("name", "content"), [("captions.jsonl", b'{"text": "a row of others"}'), ("captions.csv", b"a,b")]
)
def test_files_of_others_are_not_resumed(tmp_path: Path, written: dict[str, bytes], name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        resume_rows(tmp_path, ["jsonl", "csv"], "0123")
    assert (tmp_path / name).read_bytes() == content
