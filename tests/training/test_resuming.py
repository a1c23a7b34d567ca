"""Which run is resumed, and from which checkpoint; what is refused; damaged checkpoints."""

import io
import math
import multiprocessing
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from slow_cases import slow_after
from small_training import small_config, small_run
from three_images import caption_data
from three_images import examples_of as three_examples
from torch import Tensor

from showattendtell.config.compose import training_record
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import METADATA_KEY, find_damage
from showattendtell.runtime.files import LAST, PREVIOUS
from showattendtell.training.resume import LOCK, ResumePoint, check_data, find_start, run_lock, run_of

pytestmark = pytest.mark.filterwarnings("ignore")


class Stop(Callback):
    """Ends training as a kill would, in the middle of the second epoch."""

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 8:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, uninterrupted: Path) -> Path:
    """The folders of a run that was killed and of one that was finished."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(uninterrupted, folder / "finished")
    with pytest.raises(SystemExit):
        small_run(small_config(), folder / "killed", callbacks=[Stop()])
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def new(root: Path) -> Path:
    """The folder that Hydra has made for a new run."""
    (root / "new").mkdir()
    return root / "new"


def copied(trained: Path, which: str, to: Path, age: int = 0) -> Path:
    """A copy of the run, last written so many minutes ago."""
    shutil.copytree(trained / which, to)
    for minutes, name in ((age, LAST), (age + 5, PREVIOUS)):
        if (to / name).exists():
            written = (to / name).stat().st_mtime - 60 * minutes
            os.utime(to / name, (written, written))
    return to


def resumed(value: bool | str, *settings: str) -> tuple[bool | str, dict[str, Any]]:
    """The first arguments of `find_start`."""
    return value, training_record(small_config(*settings))


def test_the_newest_unfinished_run_of_the_same_settings_continues(
    trained: Path, root: Path, new: Path, capsys: pytest.CaptureFixture[str]
):
    copied(trained, "killed", root / "older", age=60)
    newest = copied(trained, "killed", root / "newest", age=20)
    copied(trained, "finished", root / "finished")
    small_run(small_config("seed=2", "trainer.max_epochs=1"), root / "other seed")
    start = find_start(*resumed(True), new, root)
    assert (start.folder, start.checkpoint, start.finished) == (newest, newest / LAST, False)
    assert capsys.readouterr().out.endswith(f"{newest} resumes after step 8, in epoch 2\n")


def test_where_there_is_none_a_new_one_begins(trained: Path, root: Path, new: Path, capsys: pytest.CaptureFixture[str]):
    copied(trained, "killed", root / "killed")
    (root / "begun").mkdir()
    (root / "strange").mkdir()
    (root / "strange" / LAST).write_text("no checkpoint")
    assert find_start(*resumed(True, "optimizer.lr=0.5"), new, root) == ResumePoint(new)
    assert f"{root} has no run with these settings to resume; a new one starts in {new}" in capsys.readouterr().out


def test_a_checkpoint_that_it_began_with_may_have_moved(trained: Path, root: Path, new: Path):
    killed = copied(trained, "killed", root / "killed")
    content = torch.load(killed / LAST, weights_only=False)
    content[METADATA_KEY]["config"]["init_from"] = "first/best.ckpt"
    torch.save(content, killed / LAST)
    assert find_start(*resumed(str(killed), "init_from=moved/best.ckpt"), new, None).folder == killed
    # but another run is not found by these settings
    assert find_start(*resumed(True, "init_from=moved/best.ckpt"), new, root).folder == new


def test_a_job_that_slurm_runs_again_continues(trained: Path, root: Path, new: Path, monkeypatch: pytest.MonkeyPatch):
    killed = copied(trained, "killed", root / "killed")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert find_start(*resumed(False), new, root).folder == killed


@pytest.mark.parametrize(
    ("settings", "message"),
    slow_after(
        3,
        [
            (["optimizer.lr=0.5"], ["optimizer.lr=0.5 instead of 0.01"]),
            (["data.group_by_image=true"], ["data.group_by_image=true instead of its default"]),
            (["schedule=constant"], ["schedule.final=1.0 instead of its default", "schedule.warmup=its default"]),
        ],
    ),
    ids=str,
)
def test_a_run_with_other_settings_is_refused_by_their_names(
    trained: Path, root: Path, new: Path, settings: list[str], message: list[str]
):
    killed = copied(trained, "killed", root / "killed")
    with pytest.raises(UserError) as refused:
        find_start(*resumed(str(killed), *settings), new, root)
    for part in [f"{killed} has other settings", *message]:
        assert part in str(refused.value)


def test_a_run_may_have_more_epochs_than_it_had(
    trained: Path, root: Path, new: Path, capsys: pytest.CaptureFixture[str]
):
    run = copied(trained, "finished", root / "finished")
    start = find_start(*resumed(str(run), "trainer.max_epochs=5"), new, root)
    assert (start.checkpoint, start.finished, start.extended) == (run / LAST, False, True)
    printed = capsys.readouterr().out
    assert f"{run} is extended from 2 to 5 epochs" in printed
    assert "after step 10" in printed


def test_a_run_that_ended_before_its_last_epoch_is_not_extended(root: Path, new: Path):
    """More epochs would not have changed it."""
    settings = ["trainer.max_steps=5", "trainer.max_epochs=3"]
    small_run(small_config(*settings), root / "short")
    with pytest.raises(
        UserError, match=r"ended after 1 of 3 epochs .*cannot extend it; start a new run with init_from="
    ):
        find_start(*resumed(str(root / "short"), *settings[:1], "trainer.max_epochs=9"), new, root)


def test_other_captions_words_or_regions_are_refused(tmp_path: Path):
    card = {"splits": {"train": "a"}, "vocabulary": ["a"], "encoder": {"dim": 3}}
    start = ResumePoint(tmp_path, tmp_path / LAST, card)
    check_data(start, {METADATA_KEY: card})
    check_data(ResumePoint(tmp_path), {METADATA_KEY: {}})
    for part, message in (("splits", "captions"), ("vocabulary", "vocabulary"), ("encoder", "encoder")):
        with pytest.raises(UserError, match=f"was trained with .*{message}"):
            check_data(start, {METADATA_KEY: {**card, part: None}})


def test_a_run_that_cuts_its_batches_otherwise_cannot_finish_the_epoch():
    data = caption_data(three_examples(), batch_size=1)
    with pytest.raises(UserError, match="has had 2 of its epoch's 4 batches, and this run's epochs have 6"):
        data.load_state_dict({"epoch": 1, "batches": 2, "of": 4})
    for batches in (-1, 5):
        with pytest.raises(ValueError, match=f"its epoch has had {batches} of 4 batches"):
            data.load_state_dict({"epoch": 1, "batches": batches, "of": 4})
    data.load_state_dict({"epoch": 1, "batches": 4, "of": 4})
    data.load_state_dict({"epoch": 1, "batches": 2, "of": 6})


@pytest.mark.parametrize("number", slow_after(1, [60, 300]))
def test_every_changed_bit_of_a_checkpoint_is_damage_or_harmless(trained: Path, tmp_path: Path, number: int):
    """Where none is found, all that is read is what was written."""

    def content_of(file: Path) -> bytes:
        written = io.BytesIO()
        torch.save(torch.load(file, weights_only=True), written)
        return written.getvalue()

    last, changed, dice = trained / "killed" / LAST, tmp_path / "changed.ckpt", random.Random(0)
    whole, expected = last.read_bytes(), content_of(last)
    found = 0
    for _ in range(number):
        content, place = bytearray(whole), dice.randrange(len(whole))
        content[place] ^= 1 << dice.randrange(8)
        changed.write_bytes(content)
        damage = find_damage(changed)
        found += bool(damage)
        assert damage or content_of(changed) == expected, f"byte {place}"
    assert found > number / 3
    assert not find_damage(last)


def test_a_part_that_is_marked_as_a_folder_is_damage(trained: Path, tmp_path: Path):
    """torch would read uninitialized memory as its content."""
    changed = tmp_path / "changed.ckpt"
    content = bytearray((trained / "killed" / LAST).read_bytes())
    attributes = content.rindex(b"PK\x01\x02") + 38  # of the last entry of the central directory
    content[attributes] ^= 0x10
    changed.write_bytes(content)
    assert find_damage(changed) == "one of its parts is marked as a folder"


CHANGES = {
    "cut off": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "a changed number": lambda content: content.replace(content[1000:1040], bytes(40)),
}


@pytest.mark.parametrize("change", slow_after(1, CHANGES.values()), ids=CHANGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    trained: Path, root: Path, new: Path, change: Any, capsys: pytest.CaptureFixture[str]
):
    killed = copied(trained, "killed", root / "killed")
    (killed / LAST).write_bytes(change((killed / LAST).read_bytes()))
    start = find_start(*resumed(str(killed)), new, root)
    assert start.checkpoint == killed / PREVIOUS
    output = capsys.readouterr()
    assert f"warning: {killed / LAST} is damaged (" in output.err
    assert "previous.ckpt was written before it, and what was trained since then is trained again" in output.err
    assert f"{killed} resumes after step 7, in epoch 2" in output.out
    small_run(small_config(), killed, start.checkpoint)
    assert (killed / "metrics.csv").read_bytes() == (trained / "finished/metrics.csv").read_bytes()


def test_a_run_that_was_killed_between_two_names_continues(
    trained: Path, root: Path, new: Path, capsys: pytest.CaptureFixture[str]
):
    killed = copied(trained, "killed", root / "killed")
    (killed / LAST).unlink()
    assert find_start(*resumed(True), new, root).checkpoint == killed / PREVIOUS
    assert "warning" not in capsys.readouterr().err


def test_a_damaged_last_checkpoint_never_becomes_the_previous_one(trained: Path, root: Path):
    """It would stand alone, were the run killed between the two names of the next one."""
    killed = copied(trained, "killed", root / "killed")
    (killed / LAST).write_bytes(b"damaged")
    seen = []

    class Look(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            seen.extend((killed / name).read_bytes() for name in (LAST, PREVIOUS) if (killed / name).exists())

    small_run(small_config(), killed, killed / PREVIOUS, [Look()])
    assert len(seen) > 2
    assert b"damaged" not in seen


def hold(folder: Path, held_now: Any, done: Any) -> None:
    with run_lock(folder):
        held_now.set()
        done.wait()


def test_one_process_trains_in_a_folder(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    held_now, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held_now, done))
    other.start()
    held_now.wait()
    with pytest.raises(UserError, match="is being trained by another process; wait for its end"), run_lock(tmp_path):
        pass
    other.kill()
    other.join()
    with run_lock(tmp_path):
        pass


def test_what_a_killed_process_had_not_written_to_its_end_is_removed(tmp_path: Path):
    unfinished = ("last.ckpt.1a.tmp", "last.ckpt.2b.tmp", "best.ckpt.1a.tmp", "metrics.csv.1a.tmp", "times.csv.1a.tmp")
    for name in (*unfinished, "notes.tmp", "last.ckpt"):
        (tmp_path / name).write_text("")
    with run_lock(tmp_path):
        assert {file.name for file in tmp_path.iterdir()} == {LOCK, "notes.tmp", "last.ckpt"}


def flipped(values: Tensor) -> Tensor:
    """The same numbers in another order in memory."""
    return values.T.contiguous().T if values.ndim > 1 else values.repeat_interleave(2)[::2]


DAMAGES: dict[str, tuple[str, Callable[[Any], Any]]] = {  # of the first matrix; the first are one of each kind
    "three values": ("exp_avg", lambda values: torch.zeros(3)),
    "expanded": ("exp_avg", lambda values: torch.zeros(1).expand(values.shape)),
    "sparse": ("exp_avg_sq", lambda values: values.to_sparse()),
    "list": ("exp_avg", Tensor.tolist),
    "steps": ("step", lambda step: torch.full((1000,), 5.0)),
    "many values": ("exp_avg", lambda values: torch.zeros(1000)),
    "many expanded values": ("exp_avg", lambda values: torch.zeros(1).expand(10**12)),
    "no values": ("exp_avg_sq", lambda values: torch.zeros(0)),
    "one value": ("exp_avg_sq", lambda values: torch.zeros(1)),
    "transposed": ("exp_avg_sq", lambda values: values.T),
    "another order": ("exp_avg", flipped),
    "double": ("exp_avg", Tensor.double),
    "complex": ("exp_avg", lambda values: values.to(torch.complex64)),
    "text": ("exp_avg_sq", lambda values: "x"),
    "nothing": ("exp_avg", lambda values: None),
    "negative step": ("step", lambda step: -step),
    "infinite step": ("step", lambda step: step + math.inf),
    "step of text": ("step", lambda step: "x"),
    "step of a list": ("step", lambda step: [step]),
    "integer step": ("step", Tensor.int),
}


@pytest.mark.parametrize("damage", slow_after(3, DAMAGES), ids=str)
def test_a_damaged_state_of_the_optimizer_is_reported(trained: Path, root: Path, damage: str):
    """Fused AdamW would write beyond the end of a tensor."""
    killed, (name, change) = copied(trained, "killed", root / "killed"), DAMAGES[damage]
    content = torch.load(killed / LAST, weights_only=True)
    states = content["optimizer_states"][0]["state"]
    state = next(state for state in states.values() if state["exp_avg"].ndim == 2)
    state[name] = change(state[name])
    torch.save(content, killed / LAST)
    with pytest.raises(UserError, match=r"last\.ckpt cannot be resumed"):
        small_run(small_config(), killed, killed / LAST)


def test_states_of_the_optimizer_that_are_exchanged_are_reported(trained: Path, root: Path):
    killed = copied(trained, "killed", root / "killed")
    content = torch.load(killed / LAST, weights_only=True)
    states = content["optimizer_states"][0]["state"]
    states[0], states[len(states) - 1] = states[len(states) - 1], states[0]
    torch.save(content, killed / LAST)
    with pytest.raises(UserError, match=r"last\.ckpt cannot be resumed .*another layout than the parameter"):
        small_run(small_config(), killed, killed / LAST)


@pytest.mark.parametrize("name", ["best.ckpt", "missing/last.ckpt"])
def test_a_run_resumes_from_no_other_checkpoint_than_its_last(name: str, tmp_path: Path):
    (tmp_path / "best.ckpt").touch()
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(UserError, match=r"is not the last.ckpt of a run, from which it resumes"):
        run_of(str(tmp_path / name))
    assert run_of(str(tmp_path / "last.ckpt")) == run_of(str(tmp_path)) == tmp_path
