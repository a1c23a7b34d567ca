"""Errors of the commands that users can fix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from PIL import Image
from runs import TINY, Run, assert_done, assert_error
from slow_cases import slow_after

FAULTS = {
    "evaluate": [
        (["output=file/result.json", "metrics=[bleu]"], ["file/result.json", "cannot be written"]),
        (["split=tst"], ["tst", "'test'"]),
        (["dataset.root=file"], ["file"]),
        (["dataset.entities=boxes.zip"], ["entities"]),
        (["attention.inference_mode=argmax"], ["there is no setting attention.inference_mode"]),
    ],
    "caption": [
        (["images=blank.png", "output=file"], ["file", "cannot be written"]),
        (["images=void"], ["void holds no image files"]),
        (["images=blank.png", "compare=nowhere.ckpt"], ["nowhere.ckpt does not exist"]),
        (["split=test", "output=file/page.html", "num_images=1"], ["file/page.html", "cannot be written"]),
        (["images=blank.png", "dataset.root=void"], ["dataset settings are for images of a split", "split=test"]),
        (["split=test", "images=blank.png"], ["caption photo.jpg", "split=test", "either"]),
        (["images=blank.png", "resume=true", "output=new", "formats=[jsonl,html]"], ["resume=true does not support"]),
        (["split=test", "formats=[png]"], ["split=test writes one html page; leave formats, width, dpi, colormap"]),
        ([], ["caption photo.jpg", "split=test"]),
    ],
    "train": [
        (["optimizer.lr=-1"], ["optimizer", "-1"]),
        (["trainer.accelerator=quantum"], ["trainer", "quantum"]),
        (["cache=file"], ["file"]),
    ],
}
QUICK = [(command, *faults[0]) for command, faults in FAULTS.items()]
CASES = slow_after(len(QUICK), [*QUICK, *((command, *fault) for command in FAULTS for fault in FAULTS[command][1:])])


@pytest.mark.parametrize(("command", "settings", "words"), CASES)
def test_a_fault_is_reported(
    run: Run, checkpoint: Path, folder: Path, command: str, settings: list[str], words: list[str]
):
    (folder / "file").write_text("in the way")
    (folder / "void").mkdir(exist_ok=True)
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    given = TINY if command == "train" else [f"checkpoint={checkpoint}"]
    assert_error(run(command, *given, *settings), *words)


@pytest.mark.parametrize("command", slow_after(1, ["caption", "evaluate"]))
def test_a_full_disk_is_reported_with_the_file_that_has_no_room(run: Run, checkpoint: Path, folder: Path, command: str):
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    output = ["images=blank.png", "output=disk/captions"] if command == "caption" else ["output=disk/results.json"]
    with small_disk(folder / "disk", "16k") as disk:
        fill(disk)
        assert_error(run(command, f"checkpoint={checkpoint}", *output), "disk/", "No space left on device")
        assert [file for file in disk.rglob("*") if file.is_file() and file.stat().st_size] == [disk / "others"]


@pytest.mark.slow
def test_a_stranger_s_checkpoint_draws_no_scenes_in_a_folder_that_it_names(
    run: Run, altered: Callable[[Callable[[dict[str, Any]], None]], Path], tmp_path: Path
):
    def name_a_folder(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"]["dataset"]["root"] = str(tmp_path / "elsewhere")

    file = altered(name_a_folder)
    assert_done(run("evaluate", f"checkpoint={file}", "metrics=[bleu]", f"output={tmp_path}/results.json"))
    assert not (tmp_path / "elsewhere").exists()
    given = [f"dataset.root={tmp_path}/own", f"cache={tmp_path}/cache"]  # the cache knows the others by their times
    assert_done(run("evaluate", f"checkpoint={file}", "metrics=[bleu]", f"output={tmp_path}/other.json", *given))
    assert list((tmp_path / "own").iterdir())
