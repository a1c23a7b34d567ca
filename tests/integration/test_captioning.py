"""What the command `caption` reads, prints and writes."""

import csv
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from photo_server import PhotoServer, serve_photos
from runs import Run, Start, assert_done, assert_error, held_out, kill, validated, wait_until

from showattendtell import load

SHORT = "decoding.max_length=4"


@pytest.fixture(scope="session")
def album(folder: Path, checkpoint: Path) -> Path:
    """Eleven photographs in two folders, with other files."""
    album = folder / "album"
    for number, example in enumerate(held_out(folder)[:5] * 2):
        place = album / ("rome" if number > 5 else "") / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(example.path, place)
    shutil.copy(album / "0.png", album / "rome/0.png")
    (album / "notes.txt").write_text("no image")
    return album


@pytest.fixture
def server() -> Iterator[PhotoServer]:
    with serve_photos() as running:
        yield running


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]


def test_captions_are_written_as_data_and_as_a_page_by_default(run: Run, checkpoint: Path, folder: Path, album: Path):
    done = assert_done(run("caption", f"checkpoint={checkpoint}", "album", "output=data", SHORT))
    assert sorted(file.name for file in (folder / "data").iterdir()) == ["captions.csv", "captions.jsonl", "index.html"]
    names = [*(f"{number}.png" for number in range(6)), *(f"rome/{number}.png" for number in (0, 6, 7, 8, 9))]
    captioner = load(checkpoint, device="cpu", max_length=4)
    outputs = [captioner(album / name) for name in names]
    assert done.out.splitlines() == [
        f"album/{name}\t{output.caption}" + "\tnot sure" * output.not_sure
        for name, output in zip(names, outputs, strict=True)
    ]
    rows = rows_of(folder / "data")
    assert [(row["file"], row["caption"], row["checkpoint"]) for row in rows] == [
        (f"album/{name}", output.caption, str(checkpoint)) for name, output in zip(names, outputs, strict=True)
    ]
    for row, output in zip(rows, outputs, strict=True):
        assert row["log_prob"] == pytest.approx(float(output.log_probs.sum()), abs=1e-4)
        assert row["confidence"] == pytest.approx(output.confidence, abs=1e-4)
    with (folder / "data/captions.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{name: str(value) for name, value in row.items()} for row in rows]
    assert "note: skipped files that are not images: 1\n" in done.err
    assert done.err.endswith("written to data\n")
    assert "rome/0.png</h2>" in (folder / "data/index.html").read_text()


def test_urls_are_captioned_like_files(run: Run, checkpoint: Path, folder: Path, album: Path, server: PhotoServer):
    server.files["photo.png?size=3"] = (album / "0.png").read_bytes()
    urls = [f"{server.address}/photo.png?size=3", f"{server.address}/none.png"]
    done = run(
        "caption", f"checkpoint={checkpoint}", "album/0.png", *urls, "output=fetched", "formats=[jsonl,png]", SHORT
    )
    assert_error(done, "none.png cannot be fetched (404 Client Error: Not Found)")
    first, second = done.out.splitlines()
    assert second == f"{urls[0]}\t{first.partition(chr(9))[2]}"
    assert [row["file"] for row in rows_of(folder / "fetched")] == ["album/0.png", urls[0]]
    assert {path.name for path in (folder / "fetched").glob("*.png")} == {"0.png", "photo.png"}
    captioner = load(checkpoint, device="cpu", max_length=4)
    assert [captioner(photograph).caption for photograph in (urls[0], album / "0.png")] == [first.split("\t")[1]] * 2


def test_several_captions_of_several_models_are_a_row_each(run: Run, checkpoint: Path, folder: Path, album: Path):
    line = ["caption", f"checkpoint=[{checkpoint},{checkpoint}]", f"compare={checkpoint}", "names=[both,one]"]
    done = assert_done(run(*line, "album/0.png", "output=several", "decoding.num_captions=3", SHORT))
    rows = rows_of(folder / "several")
    assert [row["checkpoint"] for row in rows] == [f"{checkpoint} + {checkpoint}"] * 3 + [str(checkpoint)] * 3
    names = ["both"] * 3 + ["one"] * 3
    assert done.out.splitlines() == [f"{name}\t{row['caption']}" for name, row in zip(names, rows, strict=True)]


def test_ctrl_c_keeps_the_captions_so_far(start: Start, checkpoint: Path, folder: Path, album: Path):
    (folder / "many").mkdir()
    for number in range(2000):
        (folder / f"many/{number}.png").hardlink_to(album / "0.png")
    running = start("caption", f"checkpoint={checkpoint}", "many", "output=stopped", SHORT)
    rows = folder / "stopped/captions.jsonl"
    wait_until(lambda: rows.exists() and rows.read_text().count("\n") > 8)
    os.kill(running.process.pid, signal.SIGINT)
    done = running.finish()
    assert done.status == 130
    assert "stopped has the captions so far; the same command continues with output=stopped resume=true" in done.err
    captioned = len(rows_of(folder / "stopped"))
    assert 8 < captioned < 2000
    page = (folder / "stopped/index.html").read_text()  # a photograph may have its row, and no entry yet
    assert any(f"{number:,} photographs" in page for number in (captioned - 1, captioned))


def test_a_killed_command_resumes_as_if_it_had_not_been(
    start: Start, run: Run, checkpoint: Path, folder: Path, album: Path
):
    (folder / "few").mkdir()
    for number in range(60):
        (folder / f"few/{number:03}.png").hardlink_to(album / f"{number % 6}.png")
    (folder / "few/040.png").unlink()
    (folder / "few/040.png").write_text("no image")
    line = ["caption", f"checkpoint={checkpoint}", "few", SHORT, "formats=[jsonl,csv]"]
    running = start(*line, "output=killed")
    rows = folder / "killed/captions.jsonl"
    wait_until(lambda: rows.exists() and rows.read_text().count("\n") > 8)
    kill(running)
    captioned = len(rows_of(folder / "killed"))
    assert 8 < captioned < 50
    with rows.open("a") as file:
        file.write('{"file": "few/0')
    done = run(*line, "output=killed", "resume=true")
    assert_error(done, "few/040.png cannot be read")
    assert f"note: {captioned} photographs are in killed/captions.jsonl" in done.err
    assert len(done.out.splitlines()) == 59 - captioned
    assert_error(run(*line, "output=whole"), "few/040.png cannot be read")
    assert_same_rows(rows_of(folder / "killed"), rows_of(folder / "whole"))
    with (folder / "killed/captions.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert table == [{name: str(value) for name, value in row.items()} for row in rows_of(folder / "killed")]
    # once it is complete, only the file that cannot be read is tried again
    (folder / "few/040.png").unlink()
    content = rows.read_bytes()
    done = assert_done(run(*line, "output=killed", "resume=true"))
    assert done.out == ""
    assert rows.read_bytes() == content


def assert_same_rows(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Of the same photographs in the same order; the last digits of probabilities depend on the batch."""
    probabilities = ("log_prob", "confidence")
    for row, other in zip(rows, others, strict=True):
        assert {**row, **dict.fromkeys(probabilities)} == {**other, **dict.fromkeys(probabilities)}
        assert [row[name] for name in probabilities] == pytest.approx([other[name] for name in probabilities], abs=1e-4)


def test_a_page_of_a_split_has_references_and_the_score_of_each_caption(run: Run, checkpoint: Path, folder: Path):
    line = [f"checkpoint={checkpoint}", "split=val", SHORT, "decoding.allow_unk=false"]
    assert_done(run("evaluate", *line, "metrics=[cider]", "output=val.json"))
    done = assert_done(run("caption", *line, "num_images=4", "output=sorted.html"))
    assert done.out == "written to sorted.html\n"
    html = (folder / "sorted.html").read_text()
    assert ", 4 of 10 images of val" in html
    shown = re.findall(r"<h2[^>]*>(.*)</h2>", html)
    assert shown == [f"val-{number:05d}.png" for number in (0, 2, 5, 7)]
    for example in (validated(folder)[number] for number in (0, 2, 5, 7)):
        for caption in example.captions:
            assert f'<li dir="auto">{caption.written or " ".join(caption.words)}</li>' in html
    scores = json.loads((folder / "val.json").read_text())["per_image"]
    for name, score in zip(shown, re.findall(r' data-score="(.*?)"', html), strict=True):
        assert float(score) == pytest.approx(scores[name]["cider"], abs=1e-3)
    assert len(re.findall(r' data-confidence="0\.\d{4}"', html)) == 4
