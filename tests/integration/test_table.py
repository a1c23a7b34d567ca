"""Results next to the paper's, from the result files of a real run."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from disks import small_disk
from runs import Run, assert_done, assert_error
from slow_cases import slow_after


@pytest.fixture(scope="session")
def results(evaluated: Path, folder: Path) -> Path:
    """A folder with the result of a run, and a similar one of another seed."""
    first = folder / "tabled/first/results-test.json"
    first.parent.mkdir(parents=True)
    shutil.copy(evaluated, first)
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
    done = assert_done(run("report", "tabled", "output=[out/table.md,out/table.tex]"))
    values = [bleu4(file) for file in results.rglob("results-test.json")]
    shown = f"{statistics.mean(values):.1f}"
    deviation = f"{statistics.stdev(values):.1f}"
    [row] = [
        line.split("|")[1:-1] for line in (folder / "out/table.md").read_text().splitlines() if "| tabled |" in line
    ]
    assert [cell.strip() for cell in row][-1] == "2"
    assert f" {shown} ± {deviation} " in row
    assert shown in done.out
    assert rf"{shown} $\pm$ {deviation}" in (folder / "out/table.tex").read_text()
    assert done.out.splitlines()[-1] == "written to out/table.tex"
    assert done.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    slow_after(
        1,
        [
            (["tabled", "runs=tabled"], ["runs are given twice"]),
            (["tabled", "output=in-the-way/table.md"], ["in-the-way/table.md cannot be written"]),
            (["tabled", "columns=[bleu5]"], ["there is no column bleu5"]),
        ],
    ),
)
def test_a_fault_is_reported(run: Run, results: Any, folder: Path, arguments: list[str], words: list[str]):
    (folder / "in-the-way").write_text("no folder")
    assert_error(run("report", *arguments), *words)


def test_a_full_disk_leaves_no_part_of_a_table_so_the_command_can_be_repeated(run: Run, results: Any, folder: Path):
    with small_disk(folder / "narrow", "12k") as disk:
        for _ in range(2):
            done = run("report", "tabled", "output=[narrow/a.md,narrow/a.tex,narrow/a.html]")
            assert_error(done, "narrow/a.html cannot be written (No space left on device)")
            assert list(disk.iterdir()) == []
