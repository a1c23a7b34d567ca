"""What an actor of Ray does, without Ray, and rows as Parquet."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from showattendtell import load
from showattendtell.config.compose import as_settings, compose
from showattendtell.extensions.ray.actors import CaptionWorker
from showattendtell.extensions.ray.parquet import GROUP, ParquetFile
from showattendtell.results.rows import CaptionRow

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra ray")


def test_an_actor_captions_a_batch_and_names_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = ["a.png", os.fsdecode(b"\xff.png"), "c.png"]
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "c.png"):
        Image.effect_noise((64, 48), 50).save(name)
    Path(names[1]).write_text("no image")
    config = as_settings(compose("caption", ["images=a.png", "device=cpu", "+decoding.max_length=4"]))
    worker = CaptionWorker(config, str(tmp_path))
    found = worker({"index": [7, 8, 9], "file": list(map(json.dumps, names))})
    assert found["index"] == [7, 9, 8]
    captioner = load(device="cpu", max_length=4)
    rows = [[CaptionRow(*row) for [row] in json.loads(text)] for text in found["rows"] if text]
    assert [(row.file, row.caption) for [row] in rows] == [
        (name, captioner(name).caption) for name in ("a.png", "c.png")
    ]
    assert found["rows"][2] == found["error"][0] == found["error"][1] == ""
    assert "cannot be read (it is empty or of no known image format)" in json.loads(found["error"][2])


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
