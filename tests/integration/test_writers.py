"""Every command that writes, over files of others and several at once: nothing that exists is replaced."""

import shutil
from pathlib import Path

import pytest
from existing_files import EXISTING, snapshot
from extension_cases import cases
from runs import TINY, Run, assert_error, held_out
from slow_cases import slow_after

QUICK = ["decoding.max_length=3", "device=cpu"]

COMMANDS = {
    "average": ["checkpoint=[best.ckpt,best.ckpt]"],
    "evaluate": ["checkpoint=best.ckpt", "metrics=[bleu]", *QUICK],
    "caption": ["checkpoint=best.ckpt", "photo.png", *QUICK],
    "caption split": ["checkpoint=best.ckpt", "split=test", "num_images=1", *QUICK],
    "score": ["references=references.txt", "hypotheses=references.txt", "metrics=[bleu]"],
    "report": ["results.json"],
    **cases("WRITERS"),
}
"""A command of each kind of output, without the output."""

CASES = [(name, list(EXISTING)[i % len(EXISTING)]) for i, name in enumerate(COMMANDS)]
"""Each with another kind of file in the place of its output; tests/runtime/test_files.py has all kinds."""


@pytest.fixture
def place(tmp_path: Path, checkpoint: Path, folder: Path) -> Path:
    shutil.copy(checkpoint, tmp_path / "best.ckpt")
    shutil.copy(held_out(folder)[0].path, tmp_path / "photo.png")
    (tmp_path / "references.txt").write_text("a dog runs\na cat sits\n")
    (tmp_path / "results.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(("command", "kind"), slow_after(2, CASES))
def test_an_output_that_exists_is_refused(run_forked: Run, place: Path, folder: Path, command: str, kind: str):
    name = "out.html" if command in ("report", "caption split") else "out"
    EXISTING[kind](place / name)
    before = snapshot(place)
    module, settings = command.partition(" ")[0], [*COMMANDS[command], f"output={name}"]
    done = run_forked(module, *settings, folder=place, SHOWATTENDTELL_CACHE=str(folder / "cache"))
    assert_error(done, name)
    assert "exist" in done.err.lower()
    assert snapshot(place) == before


def test_a_run_is_not_trained_over(run_forked: Run, checkpoint: Path, folder: Path, tmp_path: Path):
    shutil.copytree(checkpoint.parent, tmp_path / "run")
    before = snapshot(tmp_path)
    environment = {"SHOWATTENDTELL_CACHE": str(folder / "cache")}
    done = run_forked("train", *TINY, "seed=2", "hydra.run.dir=run", folder=tmp_path, **environment)
    assert_error(done, "run has files of an earlier run", "resume=true")
    assert snapshot(tmp_path) == before
    (tmp_path / "run/last.ckpt").unlink()
    before = snapshot(tmp_path)
    done = run_forked("train", *TINY, "resume=true", "hydra.run.dir=run", folder=tmp_path, **environment)
    assert_error(done, "best.ckpt")
    assert snapshot(tmp_path) == before
