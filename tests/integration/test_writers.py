"""Every command that writes, over files of others and several at once: nothing that exists is replaced."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from existing_files import EXISTING, snapshot
from runs import TINY, Run, Start, assert_done, assert_error, held_out
from slow_cases import slow_after

QUICK = ["decoding.max_length=3", "device=cpu"]

COMMANDS = {
    "average": ["checkpoint=[best.ckpt,best.ckpt]"],
    "calibrate": ["checkpoint=best.ckpt", "device=cpu"],
    "evaluate": ["checkpoint=best.ckpt", "metrics=[bleu]", *QUICK],
    "caption": ["checkpoint=best.ckpt", "photo.png", *QUICK],
    "caption split": ["checkpoint=best.ckpt", "split=test", "number=1", *QUICK],
    "score": ["references=references.txt", "hypotheses=references.txt", "metrics=[bleu]"],
    "report": ["results.json"],
    "export": ["checkpoint=best.ckpt", "formats=[torch]", "max_length=3"],
}
"""A command of each kind of output, without the output."""

CASES = [(name, kind) for kind in EXISTING for name in COMMANDS]
FIRST = [(name, list(EXISTING)[i % len(EXISTING)]) for i, name in enumerate(COMMANDS)]


@pytest.fixture
def place(tmp_path: Path, checkpoint: Path, folder: Path) -> Path:
    shutil.copy(checkpoint, tmp_path / "best.ckpt")
    shutil.copy(held_out(folder)[0].path, tmp_path / "photo.png")
    (tmp_path / "references.txt").write_text("a dog runs\na cat sits\n")
    (tmp_path / "results.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "kind"), slow_after(len(FIRST), [*FIRST, *(case for case in CASES if case not in FIRST)])
)
def test_an_output_that_exists_is_refused(run_forked: Run, place: Path, folder: Path, command: str, kind: str):
    name = "out.html" if command in ("report", "caption split") else "out"
    EXISTING[kind](place / name)
    before = snapshot(place)
    module, settings = command.partition(" ")[0], [*COMMANDS[command], f"output={name}"]
    done = run_forked(module, *settings, folder=place, SHOWATTENDTELL_CACHE=str(folder / "cache"))
    assert_error(done, name)
    assert "exist" in done.err.lower()
    assert snapshot(place) == before


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("caption", ["captions", "captions-2", "captions-3"]),
        ("caption split", ["page-test.html", "page-test-2.html", "page-test-3.html"]),
        ("evaluate", ["results-test.json", "results-test-2.json", "results-test-3.json"]),
    ],
)
def test_commands_that_start_at_once_have_outputs_of_their_own(
    start_forked: Start, place: Path, folder: Path, command: str, names: list[str]
):
    module, environment = command.partition(" ")[0], {"SHOWATTENDTELL_CACHE": str(folder / "cache")}
    before = set(snapshot(place))
    running = [start_forked(module, *COMMANDS[command], folder=place, **environment) for _ in names]
    done = [assert_done(one.finish()) for one in running]
    made = {name.split("/")[0] for name in set(snapshot(place)) - before}
    assert made == set(names)
    for name in names:
        assert sum(f"{name}\n" in one.out or f"{name}/" in one.err for one in done) == 1
    if command == "caption":
        rows = [json.loads((place / name / "captions.jsonl").read_text()) for name in names]
        assert all(row == rows[0] for row in rows)


def test_of_commands_that_are_given_one_folder_one_writes(start_forked: Start, place: Path, folder: Path):
    line, environment = [*COMMANDS["caption"], "output=out"], {"SHOWATTENDTELL_CACHE": str(folder / "cache")}
    running = [start_forked("caption", *line, folder=place, **environment) for _ in range(3)]
    done = [one.finish() for one in running]
    assert sorted(one.status for one in done) == [0, 2, 2]
    assert len((place / "out/captions.jsonl").read_text().splitlines()) == 1
    for one in done:
        if one.status:
            assert_error(one, "out")


def test_a_run_is_not_trained_over(run_forked: Run, checkpoint: Path, folder: Path, tmp_path: Path):
    shutil.copytree(checkpoint.parent, tmp_path / "run")
    before = snapshot(tmp_path)
    environment = {"SHOWATTENDTELL_CACHE": str(folder / "cache")}
    done = run_forked("train", *TINY, "seed=2", "hydra.run.dir=run", folder=tmp_path, **environment)
    assert_error(done, "run has files of another run", "resume=true")
    assert snapshot(tmp_path) == before
    (tmp_path / "run/last.ckpt").unlink()
    before = snapshot(tmp_path)
    done = run_forked("train", *TINY, "resume=true", "hydra.run.dir=run", folder=tmp_path, **environment)
    assert_error(done, "best.ckpt")
    assert snapshot(tmp_path) == before


def test_scores_of_an_earlier_checkpoint_are_left_out_of_a_report(run_forked: Run, place: Path, folder: Path):
    def run(*line: str) -> Any:
        return run_forked(*line, folder=place, SHOWATTENDTELL_CACHE=str(folder / "cache"))

    (place / "results.json").unlink()
    assert_done(run("evaluate", *COMMANDS["evaluate"]))
    assert_done(run("report", "results-test.json"))
    assert_done(run("average", "checkpoint=[best.ckpt,best.ckpt]", "output=new.ckpt"))
    (place / "new.ckpt").replace(place / "best.ckpt")
    assert_error(run("report", "results-test.json"), "its checkpoint has changed since; evaluate it again")
    assert_done(run("evaluate", *COMMANDS["evaluate"]))
    done = assert_done(run("report", "."))
    assert "results-test.json is left out: its checkpoint has changed since" in done.out
