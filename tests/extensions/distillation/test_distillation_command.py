"""A model that learns from the words and the captions of an ensemble, by the commands of its page."""

import csv
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import STEPWISE, TINY, Run, assert_done, assert_error

from showattendtell.runtime.files import sha256


@pytest.fixture(scope="session")
def teacher(run: Run, checkpoint: Path, folder: Path) -> str:
    """An ensemble: a trained model, and one of larger weights, which has other words to say."""
    content = torch.load(checkpoint, weights_only=True)
    numbers = torch.Generator().manual_seed(0)
    for name, own in content["state_dict"].items():
        if name.startswith("captioner.decoder"):
            own += 0.3 * torch.randn(own.shape, generator=numbers)
    torch.save(content, folder / "runs/other.ckpt")
    return "[runs/first/best.ckpt,runs/other.ckpt]"


@pytest.fixture(scope="session")
def written(run: Run, teacher: str, folder: Path) -> Path:
    settings = ["split=train", "metrics=[bleu]", "decoding.allow_unk=false", "decoding.min_length=3"]
    assert_done(run("evaluate", f"checkpoint={teacher}", *settings, "output=runs/train.json"))
    return folder / "runs/train.json"


def card_of(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)["showattendtell"]


def figures(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.mark.slow
def test_a_student_comes_close_to_the_distributions_and_trains_on_the_captions_of_an_ensemble(
    run: Run, teacher: str, written: Path, checkpoint: Path, folder: Path
):
    settings = [f"distillation.teacher={teacher}", "distillation.weight=0.9", "distillation.captions=runs/train.json"]
    settings += ["trainer.max_epochs=4", "data.batch_size=4", "optimizer.lr=0.02"]
    done = assert_done(run("train", *TINY, *settings, "hydra.run.dir=runs/student"))
    student = folder / "runs/student"
    divergences = figures(student, "train/distillation")
    assert divergences[-1] < 0.7 * divergences[0], divergences
    ours, theirs = card_of(student / "best.ckpt"), card_of(checkpoint)
    assert ours["extras"]["distillation.teachers"] == [
        sha256(folder / "runs/first/best.ckpt"),
        sha256(folder / "runs/other.ckpt"),
    ]
    assert ours["vocabulary"] == theirs["vocabulary"]
    assert [split for split in ("train", "val", "test") if ours["splits"][split] != theirs["splits"][split]] == [
        "train"
    ]
    [row] = [line for line in done.out.splitlines() if "│ train" in line]
    assert row.split("│")[2:4] == ["     40 ", "       40 "]
    assert len(set(json.loads(written.read_text())["captions"].values())) > 1


def test_generated_captions_are_added_to_the_reference_captions(run: Run, written: Path, folder: Path):
    short = [*TINY, "trainer.limit_train_batches=1", "distillation.keep_references=true"]
    done = assert_done(run("train", *short, "distillation.captions=[runs/train.json]", "hydra.run.dir=runs/added"))
    [row] = [line for line in done.out.splitlines() if "│ train" in line]
    assert row.split("│")[3] == "      240 "


def test_teachers_and_captions_that_do_not_fit(run: Run, teacher: str, written: Path, folder: Path):
    def train(*settings: str) -> Any:
        return run("train", *TINY, *settings, f"hydra.run.dir=runs/wrong-{secrets.token_hex(4)}")

    assert_error(
        train(f"distillation.teacher={teacher}", "vocabulary.size=20"), "another vocabulary (40 words)", "(20)"
    )
    content = json.loads(written.read_text())
    content["captions"]["train-00003.png"] = " "
    (folder / "runs/test.json").write_text(json.dumps(content))
    assert_error(
        train("distillation.captions=runs/test.json"),
        "no caption or an empty one of 1 of 40 training images (train-00003.png)",
        "evaluate split=train decoding.min_length=1",
    )


@pytest.mark.slow
def test_a_student_resumes_with_the_same_teachers_only(run: Run, teacher: str, folder: Path):
    def train(name: str, *settings: str) -> Any:
        return run("train", *STEPWISE, f"distillation.teacher={teacher}", *settings, f"hydra.run.dir=runs/{name}")

    assert_done(train("whole"))
    assert_done(train("half", "trainer.max_epochs=2"))
    other = folder / "runs/other.ckpt"
    same = other.read_bytes()
    other.write_bytes((folder / "runs/first/best.ckpt").read_bytes())
    assert_error(run("train", "resume=runs/half", "trainer.max_epochs=3"), "other distillation.teachers")
    other.write_bytes(same)
    assert_done(run("train", "resume=runs/half", "trainer.max_epochs=3"))
    assert figures(folder / "runs/half", "train/distillation") == figures(folder / "runs/whole", "train/distillation")
    one, two = (torch.load(folder / f"runs/{name}/last.ckpt", weights_only=True) for name in ("whole", "half"))
    assert [name for name, own in one["state_dict"].items() if not torch.equal(own, two["state_dict"][name])] == []
