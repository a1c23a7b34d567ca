"""A whole table by one command, killed in the middle and run again."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from runs import TINY, Run, Start, assert_done, kill, wait_for_steps

pytestmark = pytest.mark.slow

SETTINGS = [*TINY, "trainer.max_epochs=2", "trainer.limit_train_batches=4", "checkpoint_interval_minutes=0"]
TABLE = ["table=shapes", "recipes=[soft]", "seeds=[1]", "table.pages=[soft]", "table.decodings=[1,3]"]
BUDGET = [*TABLE, f"settings=[{','.join(SETTINGS)}]"]


def begun(text: str) -> list[str]:
    """The commands that were run."""
    return [line.split()[2] for line in text.splitlines() if line.startswith("$ showattendtell ")]


@pytest.fixture(scope="session")
def interrupted(start: Start, folder: Path) -> str:
    """What a command printed that was asked to stop in mid-training."""
    running = start("reproduce", *BUDGET)
    wait_for_steps(running, lambda: folder / "runs/paper-shapes/soft/1", 3)
    done = kill(running, signal.SIGTERM)
    assert done.status == 143
    assert begun(done.out) == ["prepare", "train"]
    assert "the same command resumes from here" in done.err
    assert not list((folder / "runs/paper-shapes").rglob("results-*.json"))
    return done.out


@pytest.fixture(scope="session")
def finished(run: Run, interrupted: str, folder: Path) -> str:
    return assert_done(run("reproduce", *BUDGET)).out


def test_what_was_interrupted_continues_and_is_scored_when_it_is_finished(finished: str, folder: Path):
    assert begun(finished) == ["train", "evaluate", "evaluate", "caption"]
    assert "resumes after step" in finished
    content = json.loads((folder / "runs/paper-shapes/shapes.json").read_text())
    whole, narrower = content["blocks"]
    assert [row["model"] for row in whole["rows"]] == ["soft, beam 1", "soft, beam 3"]
    assert [row["model"] for row in narrower["rows"]] == ["soft, beam 1"]
    assert {"pointing_game", "attention_entropy", "training_minutes", "cider"} <= whole["rows"][0]["figures"].keys()
    assert f"all runs with other settings than their recipes: {' '.join(SETTINGS[:1])}" in "".join(content["notes"])
    for name in ("shapes.md", "shapes.tex", "shapes.html", "shapes-photographs.html"):
        assert (folder / "runs/paper-shapes" / name).stat().st_size > 200


def test_what_is_finished_is_passed_over_and_the_table_is_the_same(run: Run, finished: str, folder: Path):
    before = (folder / "runs/paper-shapes/shapes.json").read_text()
    again = assert_done(run("reproduce", *BUDGET))
    assert begun(again.out) == []
    assert "training left: 0 s" in again.out
    assert (folder / "runs/paper-shapes/shapes.json").read_text() == before


def test_seeds_write_as_one_model_in_the_row_of_the_ensemble(run: Run, finished: str, folder: Path):
    done = assert_done(run("reproduce", *BUDGET, "seeds=[1,2]"))
    assert begun(done.out) == ["train", *["evaluate"] * 4]
    content = json.loads((folder / "runs/paper-shapes/shapes.json").read_text())
    labels = {row["model"]: len(row["results"]) for row in content["blocks"][0]["rows"]}
    assert labels == {f"{name}, beam {beam}": n for name, n in (("soft", 2), ("soft_ensemble", 1)) for beam in (1, 3)}


def test_a_mean_is_built_from_the_best_weights_of_its_parts(run: Run, finished: str, folder: Path):
    shutil.copytree(folder / "runs/paper-shapes", folder / "runs/means")
    command = ["reproduce", *BUDGET, "recipes=[soft_average]", "output=runs/means"]
    done = assert_done(run(*command))
    assert begun(done.out) == ["train", "evaluate", "evaluate", "average", "evaluate", "evaluate"]
    means = folder / "runs/means"
    first, second, mean = (
        torch.load(means / f"{name}/1/best.ckpt", weights_only=True)["state_dict"]
        for name in ("soft", "soft_cider", "soft_average")
    )
    name = "captioner.decoder.embedding.weight"
    assert not torch.equal(first[name], second[name])
    torch.testing.assert_close(mean[name], (first[name] + second[name]) / 2)
    rows = json.loads((means / "shapes.json").read_text())["blocks"][0]["rows"]
    minutes = {row["model"]: row["figures"].get("training_minutes", {}).get("mean") for row in rows}
    assert minutes["soft_average, beam 3"] == pytest.approx(minutes["soft_cider, beam 3"])
    assert minutes["soft_cider, beam 3"] > minutes["soft, beam 3"]
    assert begun(assert_done(run(*command)).out) == []


def test_workers_share_the_runs_and_the_last_one_writes_the_whole_table(start: Start, run: Run, folder: Path):
    shared = [*BUDGET, "seeds=[1,2,3]", "output=runs/shared"]
    workers = [start("reproduce", *shared) for _ in range(2)]
    first, second = (assert_done(worker.finish()).out for worker in workers)
    together = begun(first) + begun(second)
    assert together.count("train") == 3
    assert together.count("evaluate") == 2 * (3 + 1)  # each seed, and the ensemble
    assert "by another worker" in first + second
    content = json.loads((folder / "runs/shared/shapes.json").read_text())
    assert [len(row["results"]) for row in content["blocks"][0]["rows"]] == [3, 3, 1, 1]
