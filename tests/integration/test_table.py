"""Results next to the paper's, from the result file of a real run."""

import json
from pathlib import Path

from disks import small_disk
from runs import Run, assert_done, assert_error


def test_a_result_is_a_row_on_the_screen_and_in_every_file(run: Run, evaluated: Path, folder: Path):
    done = assert_done(run("report", "scores", "output=[out/table.md,out/table.tex]"))
    shown = f"{json.loads(evaluated.read_text())['bleu4']:.1f}"
    assert shown in done.out
    assert [line for line in (folder / "out/table.md").read_text().splitlines() if f"| {shown} |" in line]
    assert shown in (folder / "out/table.tex").read_text()
    assert done.out.splitlines()[-1] == "written to out/table.tex"
    assert done.err == ""


def test_a_column_that_is_none_is_reported(run: Run, evaluated: Path):
    assert_error(run("report", "scores", "columns=[bleu5]"), "there is no column bleu5")


def test_a_full_disk_leaves_no_part_of_a_table_so_the_command_can_be_repeated(run: Run, evaluated: Path, folder: Path):
    with small_disk(folder / "narrow", "12k") as disk:
        for _ in range(2):
            done = run("report", "scores", "output=[narrow/a.md,narrow/a.tex,narrow/a.html]")
            assert_error(done, "narrow/a.html cannot be written (No space left on device)")
            assert list(disk.iterdir()) == []
