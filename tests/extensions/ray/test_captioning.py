"""What a worker of Ray does, without Ray."""

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from showattendtell import load
from showattendtell.config.compose import compose, to_plain
from showattendtell.errors import UserError
from showattendtell.extensions.ray.captioning import (
    CaptionWorker,
    _finished,
    caption_in_processes,
    read_errors,
    schema,
)

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra ray")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra ray")


def table(names: list[str], settings: str = "0123", **others: Any) -> Any:
    return pyarrow.Table.from_pylist([{"file": name, "settings": settings, **others} for name in names], schema())


def test_a_worker_captions_a_batch_and_names_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = ["a.png", "b.png", "c.png"]
    monkeypatch.chdir(tmp_path)
    for name in names:
        Image.effect_noise((64, 48), 50).save(name)
    Path("b.png").write_text("no image")
    config = compose("caption", ["images=a.png", "device=cpu", "+decoding.max_length=4"])
    settings = {name: value for name, value in to_plain(config, resolve=False).items() if name != "hydra"}
    worker = CaptionWorker(settings, "0123", str(tmp_path))
    rows = worker({"file": names})
    assert rows.schema == schema()
    assert rows["file"].to_pylist() == ["a.png", "c.png", "b.png"]
    captioner = load(device="cpu", max_length=4)
    assert rows["caption"].to_pylist() == [captioner("a.png").caption, captioner(names[2]).caption, None]
    assert rows["settings"].to_pylist() == ["0123"] * 3
    first, second, third = rows["error"].to_pylist()
    assert first is second is None
    assert "b.png cannot be read (it is empty or of no known image format)" in third


def test_complete_files_are_finished_and_others_are_removed(tmp_path: Path):
    parquet.write_table(table(["a.jpg", "b.jpg"]), tmp_path / "1.parquet")
    parquet.write_table(table(["c.jpg"]), tmp_path / "2.parquet")
    whole = (tmp_path / "2.parquet").read_bytes()
    for end in (0, 4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "2.parquet").write_bytes(whole[:end])
        assert _finished(tmp_path, "0123") == {"a.jpg", "b.jpg"}
        assert [path.name for path in tmp_path.iterdir()] == ["1.parquet"]
    with pytest.raises(UserError, match="by another model or with other settings"):
        _finished(tmp_path, "4567")


def test_files_with_an_error_are_not_finished_and_removed(tmp_path: Path):
    rows = [table(["a.jpg"], caption="a dog"), table(["b.jpg"], error="b.jpg cannot be read")]
    parquet.write_table(pyarrow.concat_tables(rows), tmp_path / "1.parquet")
    parquet.write_table(table(["c.jpg"]), tmp_path / "2.parquet")
    assert _finished(tmp_path, "0123") == {"c.jpg"}
    assert [path.name for path in tmp_path.iterdir()] == ["2.parquet"]


def test_names_that_are_no_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff.png")
    Path(name).touch()
    config = compose("caption", [f"images={tmp_path}", "workers=2"])
    with pytest.raises(UserError, match=r"workers=2 needs printable file names; rename .*udcff.png"):
        caption_in_processes(config, [str(tmp_path)], tmp_path / "out")


def test_errors_of_all_files_are_read(tmp_path: Path):
    parquet.write_table(table(["a.jpg", "b.jpg"]), tmp_path / "1.parquet")
    parquet.write_table(table(["c.jpg"], error="image c.jpg is empty"), tmp_path / "2.parquet")
    assert read_errors(tmp_path) == ["image c.jpg is empty"]
