"""The command `caption` on a Ray cluster."""

import json
import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import OWN_RAY, workers_of
from runs import Run, Start, assert_done, assert_error, held_out, wait_until

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
NUMBER = 400
DIGITS = {"log_prob", "confidence"}


@pytest.fixture
def album(folder: Path, checkpoint: Path) -> Path:
    """Photographs, one of which cannot be read, and one with a name of any bytes."""
    place, scenes = folder / "crowd", held_out(folder)
    place.mkdir()
    for number in range(NUMBER):
        shutil.copy(scenes[number % 8].path, place / f"{number:03}.png")
    (place / "123.png").write_text("no image")
    (place / "399.png").rename(place / os.fsdecode(b"\xff.png"))
    return place


def rows_of(place: Path) -> dict[str, dict[str, Any]]:
    rows = list(map(json.loads, (place / "captions.jsonl").read_text().splitlines()))
    assert len({row["file"] for row in rows}) == len(rows)
    return {row.pop("file"): row for row in rows}


@pytest.mark.slow
def test_a_cluster_loses_no_photograph_when_a_worker_is_killed(
    start: Start, run: Run, checkpoint: Path, folder: Path, album: Path, cluster: str, short_folder: Path
):
    environment = {**OWN_RAY, "RAY_ADDRESS": cluster}
    line = ["caption", f"checkpoint={checkpoint}", "crowd", "workers=2"]
    running = start(*line, "output=parallel", **environment)
    written = folder / "parallel/captions.jsonl"
    wait_until(lambda: written.exists() or not running.process.is_alive())
    first, _ = workers_of(short_folder, "MapWorker(MapBatches(CaptionWorker))")
    os.kill(first, signal.SIGKILL)
    assert 0 < len(rows_of(folder / "parallel")) < NUMBER - 64, "it was too late"
    done = running.finish()
    assert_error(done, "crowd/123.png cannot be read (it is empty or of no known image format)")
    assert "written to parallel\n" in done.err
    rows = rows_of(folder / "parallel")
    assert_error(run("caption", f"checkpoint={checkpoint}", "crowd", "output=plain", "formats=[jsonl]"), "123.png")
    plain = rows_of(folder / "plain")
    assert rows.keys() == plain.keys()
    for name, row in rows.items():
        assert {k: row[k] for k in row.keys() - DIGITS} == {k: plain[name][k] for k in row.keys() - DIGITS}
        assert [row[k] for k in sorted(DIGITS)] == pytest.approx([plain[name][k] for k in sorted(DIGITS)], abs=1e-4)

    # the rows of new photographs are added to a finished folder
    (album / "123.png").unlink()
    shutil.copy(album / "000.png", album / "new.png")
    done = assert_done(run(*line, "output=parallel", "resume=true", **environment))
    assert done.out.startswith("crowd/new.png\t")
    assert rows_of(folder / "parallel").keys() == {*rows, "crowd/new.png"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("workers=2 formats=[jsonl,html]", "workers=2 writes rows; leave html out of formats"),
        ("workers=2 resume=true", "give it as output=FOLDER"),
        ("resume=true output=new formats=[jsonl,parquet]", "give jsonl, optionally with csv"),
        ("workers=2 output=other", "other exists, and no file is replaced"),
    ],
)
def test_what_cannot_be_written_in_parallel_is_refused(run_forked: Run, tmp_path: Path, settings: str, words: str):
    (tmp_path / "photo.jpg").touch()
    (tmp_path / "other").mkdir(parents=True)
    (tmp_path / "other/mine.txt").touch()
    assert_error(run_forked("caption", "photo.jpg", *settings.split(), folder=tmp_path), words)
