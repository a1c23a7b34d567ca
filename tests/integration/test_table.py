"""Results next to the paper's, from the result files of a real run."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import Run, assert_done, assert_error
from slow_cases import slow_after


@pytest.fixture(scope="module")
def results(run: Run, checkpoint: Path, folder: Path) -> Path:
    """A folder with the result of a run, and a similar one of another seed."""
    first = folder / "tabled/first/results-test.json"
    assert_done(run("evaluate", f"checkpoint={checkpoint}", "metrics=[bleu]", f"output={first}"))
    content = json.loads(first.read_text())
    content |= {
        "seed": 2,
        "checkpoint": "gone/best.ckpt",
        "checkpoint_sha256": "another",
        "bleu4": content["bleu4"] + 3,
    }
    content["config"] |= {"seed": 2, "cache": "elsewhere"}
    second = folder / "tabled/an odd, [name]=2/results-test.json"
    second.parent.mkdir()
    second.write_text(json.dumps(content))
    return first.parents[1]


def bleu4(file: Path) -> float:
    return json.loads(file.read_text())["bleu4"]


def test_runs_of_two_seeds_become_one_row(run: Run, results: Path, folder: Path):
    done = assert_done(run("report", "tabled", "output=[out/table.md,out/table.tex,out/table.json]"))
    content = json.loads((folder / "out/table.json").read_text())
    [block] = content["blocks"]
    [row] = block["rows"]
    values = [bleu4(file) for file in results.rglob("results-test.json")]
    figure = row["figures"]["bleu4"]
    assert figure["mean"] == pytest.approx(statistics.mean(values))
    assert figure["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert (row["model"], [result["seeds"] for result in row["results"]]) == ("soft", [[2], [1]])
    shown = f"{figure['mean']:.1f}"
    assert shown in done.out
    assert f"{shown} ± 2.1" in (folder / "out/table.md").read_text()
    assert rf"{shown} $\pm$ 2.1" in (folder / "out/table.tex").read_text()
    assert done.out.splitlines()[-1] == "written to out/table.json"
    assert done.err == ""


def test_the_table_is_written_though_nobody_reads_standard_output(results: Path, folder: Path):
    command = f"{sys.executable} -m showattendtell.report tabled output=out/unread.md | true"
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    assert (folder / "out/unread.md").read_text().startswith("| data ")
    assert done.stderr == ""


def test_a_place_may_be_called_as_it_likes(run: Run, results: Path, folder: Path):
    assert_done(run("report", "tabled/an odd, [name]=2", "output=out/one.json", "columns=[bleu4]"))
    [[row]] = [block["rows"] for block in json.loads((folder / "out/one.json").read_text())["blocks"]]
    assert row["figures"].keys() == {"bleu4"}
    assert row["results"] == [{"file": "tabled/an odd, [name]=2/results-test.json", "seeds": [2]}]


def test_the_papers_rows_stand_next_to_a_result_on_its_data(run: Run, results: Path, folder: Path):
    content = json.loads((results / "first/results-test.json").read_text())
    (folder / "flickr.json").write_text(json.dumps({**content, "dataset": "flickr8k"}))
    done = assert_done(run("report", "flickr.json"))
    assert "paper: Soft-Attention" in done.out
    assert "paper: " not in assert_done(run("report", "flickr.json", "paper=false")).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    slow_after(
        2,
        [
            ([], ["runs is not set"]),
            (["nowhere"], ["nowhere does not exist"]),
            (["tabled", "split=val"], ["tabled has no results on the split val, but on test"]),
            (["tabled", "runs=tabled"], ["runs are given twice"]),
            (["tabled", "output=table.pdf"], ["table.pdf", ".md or .tex or .json"]),
            (["tabled", "output=in-the-way/table.md"], ["in-the-way/table.md cannot be written"]),
            (["tabled", "columns=[bleu5]"], ["columns=[bleu5]"]),
            (["in-the-way"], ["in-the-way is not a result file of evaluate"]),
        ],
    ),
)
def test_a_fault_is_reported(run: Run, results: Any, folder: Path, arguments: list[str], words: list[str]):
    (folder / "in-the-way").write_text("no folder")
    assert_error(run("report", *arguments), *words)


def test_photographs_are_captioned_without_a_name_before_them(run: Run, checkpoint: Path, folder: Path):
    names = ["a photo.png", "b=[1],2.png", 'c"d.png']
    photograph = next((folder / "cache/shapes").rglob("test-00000.png")).read_bytes()
    for name in names:
        (folder / name).write_bytes(photograph)
    done = assert_done(run("caption", f"checkpoint={checkpoint}", *names, "output=placed", "decoding.max_length=3"))
    assert [line.rpartition("\t")[0] for line in done.out.splitlines()] == names
    rows = [json.loads(line) for line in (folder / "placed/captions.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == names
    assert_error(run("caption", f"checkpoint={checkpoint}", names[0], "images=b.png"), "images are given twice")
