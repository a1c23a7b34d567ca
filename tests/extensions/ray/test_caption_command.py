"""The command `caption` on a Ray cluster."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import OWN_RAY, workers_of
from runs import Run, Start, assert_error, held_out, wait_until

pytest.importorskip("ray.data", reason="needs the extra ray")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra ray")
NUMBER = 400
DIGITS = {"log_prob", "confidence"}


@pytest.fixture
def album(folder: Path, checkpoint: Path) -> Path:
    """Photographs, one of which cannot be read."""
    place = folder / "crowd"
    place.mkdir()
    for number in range(NUMBER):
        shutil.copy(held_out(folder)[number % 8].path, place / f"{number:03}.png")
    (place / "123.png").write_text("no image")
    return place


def rows_of(place: Path) -> dict[str, dict[str, Any]]:
    rows = parquet.read_table(place).to_pylist()
    assert len({row["file"] for row in rows}) == len(rows)
    return {row.pop("file"): row for row in rows}


@pytest.mark.slow
def test_a_cluster_loses_no_photograph_when_a_worker_is_killed(
    start: Start, run: Run, checkpoint: Path, folder: Path, album: Path, cluster: str, short_folder: Path
):
    environment = {**OWN_RAY, "RAY_ADDRESS": cluster}
    line = ["caption", f"checkpoint={checkpoint}", "crowd", "workers=2"]
    running = start(*line, "output=parallel", **environment)
    written = folder / "parallel/captions.parquet.tmp"
    wait_until(lambda: list(written.glob("*.parquet")) or not running.process.is_alive())
    first, _ = workers_of(short_folder, "MapWorker(MapBatches(CaptionWorker))")
    os.kill(first, signal.SIGKILL)
    assert 0 < len(list(written.glob("*.parquet"))) < 7, "it was too late"
    done = running.finish()
    assert_error(done, "crowd/123.png cannot be read (it is empty or of no known image format)")
    assert "written: parallel/captions.parquet\n" in done.err
    rows = rows_of(folder / "parallel/captions.parquet")
    assert "it is empty or of no known image format" in rows.pop("crowd/123.png")["error"]
    assert_error(run("caption", f"checkpoint={checkpoint}", "crowd", "output=plain", "formats=[jsonl]"), "123.png")
    lines = (folder / "plain/captions.jsonl").read_text().splitlines()
    plain = {row.pop("file"): row for row in map(json.loads, lines)}
    assert rows.keys() == plain.keys()
    for name, row in rows.items():
        assert row.pop("error") is None
        assert row.keys() == plain[name].keys()
        assert {k: row[k] for k in row.keys() - DIGITS} == {k: plain[name][k] for k in row.keys() - DIGITS}
        assert [row[k] for k in sorted(DIGITS)] == pytest.approx([plain[name][k] for k in sorted(DIGITS)], abs=1e-4)
    assert not written.exists()

    # a finished folder gets the rows of new photographs, and of those that could not be read
    shutil.copy(album / "000.png", album / "new.png")
    files = {path.name: path.read_bytes() for path in (folder / "parallel/captions.parquet").iterdir()}
    earlier = rows_of(folder / "parallel/captions.parquet")
    done = run(*line, "output=parallel", "resume=true", **environment)
    assert_error(done, "crowd/123.png cannot be read")
    again = {path.name: path.read_bytes() for path in (folder / "parallel/captions.parquet").iterdir()}
    assert len(files.items() - again.items()) == 1, "that with the error"
    now = rows_of(folder / "parallel/captions.parquet")
    assert now.pop("crowd/new.png")["error"] is None
    assert {name: row["caption"] for name, row in now.items()} == {n: row["caption"] for n, row in earlier.items()}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("workers=2 formats=[jsonl]", "workers=N and formats=[parquet] only work together"),
        ("formats=[parquet]", "workers=N and formats=[parquet] only work together"),
        ("workers=2 resume=true", "give it as output=FOLDER"),
        ("workers=2 output=other", "other exists, and no file is replaced"),
        ("workers=2 output=pandas resume=true", "pandas exists, and no file is replaced"),
    ],
)
def test_what_cannot_be_written_in_parallel_is_refused(run_forked: Run, tmp_path: Path, settings: str, words: str):
    (tmp_path / "photo.jpg").touch()
    (tmp_path / "other/captions.parquet").mkdir(parents=True)
    (tmp_path / "other/captions.parquet/mine.txt").touch()
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas/captions.parquet").touch()
    assert_error(run_forked("caption", "photo.jpg", *settings.split(), folder=tmp_path), words)
