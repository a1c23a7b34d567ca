"""Rows of captions as JSON lines and CSV."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from showattendtell.errors import UserError
from showattendtell.types import CaptionOutput
from showattendtell.visualization.caption_rows import CaptionRow, csv_line, row_writer
from showattendtell.visualization.result_files import next_free

ROW = CaptionRow("rome/a, b.jpg", 'a "café"', -1.5, 0.25, False, "flickr8k_soft")


def test_a_row_has_log_p_and_the_geometric_mean_of_the_probabilities():
    log_probs = np.log(np.array([0.5, 0.125, 0.25]))
    caption = CaptionOutput([4, 5, 2], log_probs, np.zeros((3, 2, 2)), np.ones(3), ("a", "dog"))
    row = CaptionRow.of("a.jpg", caption, "m")
    assert row == ("a.jpg", "a dog", round(float(np.log(1 / 64)), 6), 0.25, False, "m")


def test_rows_are_in_the_files_as_soon_as_they_are_written(tmp_path: Path):
    write = row_writer(tmp_path / "new", ["csv", "html", "jsonl"])
    assert not (tmp_path / "new").exists()
    for number in range(1, 3):
        write(ROW)
        lines = (tmp_path / "new/captions.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == [ROW._asdict()] * number
        with (tmp_path / "new/captions.csv").open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        assert table == [{name: str(value) for name, value in ROW._asdict().items()}] * number
    assert len(list((tmp_path / "new").iterdir())) == 2
    assert "café" in (tmp_path / "new/captions.jsonl").read_text(encoding="utf-8")


def test_a_file_name_of_any_bytes_is_written(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9\n\x1b.jpg")
    row_writer(tmp_path, ["jsonl", "csv"])(ROW._replace(file=name))
    [line] = (tmp_path / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["file"] == name
    with (tmp_path / "captions.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["file"] == "caf\\udce9\n\x1b.jpg"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_formula_is_no_formula_in_a_spreadsheet(text: str):
    assert next(csv.reader([csv_line([text, -1.5])])) == [f"'{text}", "-1.5"]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set output to another folder"):
        row_writer(tmp_path / "file", ["csv"])(ROW)


def test_the_next_free_name_is_that_of_no_file_and_of_no_folder_with_files(tmp_path: Path):
    assert next_free(tmp_path / "captions") == tmp_path / "captions"
    (tmp_path / "captions").mkdir()
    assert next_free(tmp_path / "captions") == tmp_path / "captions"
    (tmp_path / "captions/index.html").touch()
    (tmp_path / "captions-2").touch()
    assert next_free(tmp_path / "captions") == tmp_path / "captions-3"
    (tmp_path / "page.html").touch()
    assert next_free(tmp_path / "page.html") == tmp_path / "page-2.html"
