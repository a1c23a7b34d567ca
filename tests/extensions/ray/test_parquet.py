"""Rows as Parquet."""

import os
from pathlib import Path

import pytest

from showattendtell.extensions.ray.parquet import GROUP, ParquetFile
from showattendtell.results.rows import CaptionRow

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra ray")


@pytest.mark.parametrize("number", [0, 1, GROUP + 1])
def test_rows_are_in_the_parquet_file_when_it_is_closed(tmp_path: Path, number: int):
    file, rows = ParquetFile(tmp_path), []
    for i in range(number):
        rows.append(CaptionRow(f"{i}.jpg", 'a "café"', -1.5, 0.25, i % 2 == 0, True, "flickr8k_soft", "0123"))
        file.write(rows[-1:])
    file.close()
    table = parquet.read_table(tmp_path / "captions.parquet")
    assert table.column_names == list(CaptionRow._fields)
    assert [CaptionRow(**row) for row in table.to_pylist()] == rows


def test_a_file_name_of_any_bytes_is_written_to_parquet(tmp_path: Path):
    file = ParquetFile(tmp_path)
    file.write([CaptionRow(os.fsdecode(b"caf\xe9.jpg"), "a dog", -1.5, 0.25, False, True, "flickr8k_soft", "0123")])
    file.close()
    assert parquet.read_table(tmp_path / "captions.parquet")["file"].to_pylist() == ["caf\\udce9.jpg"]
