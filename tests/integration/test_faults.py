"""Errors of the commands that users can fix."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from PIL import Image
from runs import TINY, Run, assert_done, assert_error
from slow_cases import slow_after


@pytest.mark.parametrize(
    ("settings", "words"),
    slow_after(
        1,
        [
            (["split=tst"], ["tst", "'test'"]),
            (["output=file/result.json"], ["file/result.json", "cannot be written"]),
            (["dataset.root=file"], ["file"]),
            (["dataset.skip_unreadable=true"], ["skip_unreadable"]),
            (["dataset.entities=boxes.zip"], ["entities"]),
        ],
    ),
)
def test_a_fault_of_evaluation_is_reported(
    run: Run, checkpoint: Path, folder: Path, settings: list[str], words: list[str]
):
    (folder / "file").write_text("in the way")
    assert_error(run("evaluate", f"checkpoint={checkpoint}", "metrics=[bleu]", *settings), *words)


@pytest.mark.parametrize(
    "command",
    slow_after(
        2,
        [
            ["evaluate", "metrics=[bleu]", "output=model.ckpt"],
            ["evaluate", "metrics=[attention]", "output=other.json"],
            ["caption", "split=test", "number=1", "output=model.ckpt"],
            ["caption", "images=blank.png", "formats=[png]", "output=."],
            ["caption", "images=blank.png", "formats=[html]", "output=notes"],
            ["average", "checkpoint=[model.ckpt,model.ckpt]", "output=other.json"],
            ["score", "references=other.json", "hypotheses=other.json", "output=other.json"],
            ["report", "runs=results.json", "output=notes/index.html"],
        ],
    ),
)
def test_no_command_writes_over_a_file_that_it_did_not_write(
    run: Run, checkpoint: Path, folder: Path, command: list[str]
):
    (folder / "model.ckpt").write_bytes(checkpoint.read_bytes())
    (folder / "other.json").write_text('{"images": []}')
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "index.html").write_text("my notes")
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    own = [file for file in folder.rglob("*") if file.is_file() and file.suffix in (".ckpt", ".json", ".html", ".png")]
    before = {file: file.read_bytes() for file in own}
    needs_model = command[0] in ("evaluate", "caption")
    assert_error(run(*command, *(["checkpoint=model.ckpt"] if needs_model else [])), "no file is replaced")
    assert {file: file.read_bytes() for file in own} == before


@pytest.mark.parametrize(
    "command",
    slow_after(
        1,
        [
            ["evaluate", "metrics=[bleu]", "output=disk/results.json"],
            [
                "score",
                "references=said.json",
                "hypotheses=captions.csv",
                "metrics=[bleu]",
                "output=disk/scores.json",
            ],
            ["caption", "images=blank.png", "output=disk/captions"],
        ],
    ),
    ids=lambda command: command[0],
)
def test_a_full_disk_is_reported_with_the_file_that_has_no_room(
    run: Run, checkpoint: Path, folder: Path, command: list[str]
):
    (folder / "captions.csv").write_text("image,caption\na.jpg,a dog runs on grass\nb.jpg,a man on a horse\n")
    said = [
        {"filename": f"{n}.jpg", "split": "test", "sentences": [{"raw": "a dog runs over the grass"}]} for n in "ab"
    ]
    (folder / "said.json").write_text(json.dumps({"images": said}))
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    needs_model = command[0] in ("evaluate", "caption")
    with small_disk(folder / "disk", "16k") as disk:
        fill(disk)
        done = run(*command, *([f"checkpoint={checkpoint}"] if needs_model else []))
        assert_error(done, "disk/", "No space left on device")
        assert [file for file in disk.rglob("*") if file.is_file() and file.stat().st_size] == [disk / "others"]


@pytest.mark.parametrize(
    ("settings", "words"),
    slow_after(
        1,
        [
            (["images=nowhere.jpg"], ["nowhere.jpg does not exist"]),
            (["images=void"], ["void holds no image files"]),
            (["images=blank.png", "output=file"], ["file", "cannot be written"]),
        ],
    ),
)
def test_a_fault_of_captioning_is_reported(
    run: Run, checkpoint: Path, folder: Path, settings: list[str], words: list[str]
):
    (folder / "file").write_text("in the way")
    (folder / "void").mkdir(exist_ok=True)
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    assert_error(run("caption", f"checkpoint={checkpoint}", *settings), *words)


@pytest.mark.parametrize(
    ("settings", "words"),
    slow_after(
        2,
        [
            (["optimizer.lr=-1"], ["optimizer", "-1"]),
            (["augment=flip"], ["augment", "encoder.trainable=true"]),
            (["augment.crop=0"], ["augment.crop=0"]),
            (["trainer.accelerator=quantum"], ["trainer", "quantum"]),
            (["cache=file"], ["file"]),
            (["logger=[wandb,tensorboard]", "logger.wandb.project=3"], ["logger.wandb.project=3"]),
            (["logger=[wandb,tensorbored]"], ["logger=tensorbored", "tensorboard"]),
            (["logger=wandb", "logger.wandb.folder=here"], ["there is no setting logger.wandb.folder"]),
        ],
    ),
)
def test_a_fault_of_training_is_reported(run: Run, prepared: Any, folder: Path, settings: list[str], words: list[str]):
    (folder / "file").write_text("in the way")
    assert_error(run("train", *TINY, *settings), *words)


@pytest.mark.parametrize(
    "setting",
    slow_after(
        1,
        [
            "trainer.fast_dev_run=true",
            "trainer.limit_val_batches=0",
            "trainer.check_val_every_n_epoch=2",
            "trainer.max_epochs=0",
            "optimizer.lr=1e30",
        ],
    ),
)
def test_a_training_that_leaves_no_best_checkpoint_ends_without_naming_one(
    run: Run, prepared: Any, folder: Path, tmp_path: Path, setting: str
):
    done = run("train", *TINY, setting, f"hydra.run.dir={tmp_path}")
    assert "Traceback" not in done.err
    assert done.status in (0, 2)
    assert ("best.ckpt" in done.out) == (tmp_path / "best.ckpt").is_file()


@pytest.mark.slow
def test_a_stranger_s_checkpoint_draws_no_scenes_in_a_folder_that_it_names(
    run: Run, altered: Callable[[Callable[[dict[str, Any]], None]], Path], tmp_path: Path
):
    def name_a_folder(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"]["dataset"]["root"] = str(tmp_path / "elsewhere")

    file = altered(name_a_folder)
    assert_done(run("evaluate", f"checkpoint={file}", "metrics=[bleu]", f"output={tmp_path}/results.json"))
    assert not (tmp_path / "elsewhere").exists()
    given = f"dataset.root={tmp_path}/own"
    assert_done(run("evaluate", f"checkpoint={file}", "metrics=[bleu]", f"output={tmp_path}/other.json", given))
    assert list((tmp_path / "own").iterdir())
