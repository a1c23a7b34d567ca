"""A run that is killed at any moment and resumed ends as the uninterrupted one does, bit for bit.

What a kill leaves is the folder as it is at that moment: it is copied whenever the last checkpoint has changed.
"""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
from extension_cases import cases
from killed_runs import Kills, assert_ends_as, read
from pytorch_lightning.callbacks import Callback
from slow_cases import slow_after
from small_training import small_config, small_run

from showattendtell.runtime.files import LAST

pytestmark = pytest.mark.filterwarnings("ignore")


VARIANTS = {
    "hard": ["attention=hard", "attention.num_samples=2"],
    "validation within a step": ["trainer.val_check_interval=3", "trainer.accumulate_grad_batches=2"],
    "round robin": ["data.bucketing=round_robin", "schedule=cosine", "schedule.warmup=3"],
    "padded": ["data.bucketing=padded", "data.group_by_image=true"],
    "accumulated": ["trainer.accumulate_grad_batches=2", "optimizer=rmsprop"],
    **cases("RESUMED"),
    "early stopping": ["callbacks.early_stopping.patience=1", "trainer.max_epochs=5", "trainer.limit_train_batches=3"],
    "validation within the epoch": ["trainer.val_check_interval=2"],
    "validation every other epoch": ["trainer.check_val_every_n_epoch=2", "trainer.max_epochs=4"],
    "ends within the epoch": ["trainer.max_steps=8"],
    "ends with a validation within the epoch": ["trainer.max_steps=8", "trainer.val_check_interval=3"],
    "sampled captions": ["decoding=sample"],
    "rewarded": ["reward=cider", "reward.likelihood=0.5", "attention=hard"],
    "supervised": ["loss.supervision_weight=0.5"],
    "workers": ["data.num_workers=2", "trainer.limit_train_batches=2", "trainer.max_epochs=3"],
}


def assert_resumes_from_every_checkpoint(whole: Path, folder: Path, settings: list[str], every: int) -> None:
    """From every so many-th of the moments at which something new was saved, and from those in validation."""
    config, moments = small_config(*settings, "checkpoint_interval_minutes=60"), sorted(whole.parent.glob("copies/*"))
    assert len(moments) > 3
    for moment in dict.fromkeys([*moments[::every], *(m for m in moments if "validation" in m.name)]):
        resumed = Path(shutil.copytree(moment, folder / moment.name))
        small_run(config, resumed, resumed / LAST)
        assert_ends_as(whole, resumed)


@pytest.mark.parametrize("every", slow_after(1, [6, 1]))
def test_training_continues_from_every_step(uninterrupted: Path, tmp_path: Path, every: int):
    assert_resumes_from_every_checkpoint(uninterrupted, tmp_path, [], every)


@pytest.mark.parametrize("settings", slow_after(1, VARIANTS.values()), ids=VARIANTS)
def test_training_continues_whatever_was_chosen(tmp_path: Path, settings: list[str]):
    small_run(small_config(*settings), tmp_path / "whole", callbacks=[Kills(tmp_path / "whole", tmp_path / "copies")])
    assert_resumes_from_every_checkpoint(tmp_path / "whole", tmp_path, settings, every=4)


def test_a_run_that_is_killed_in_the_validation_after_its_time_is_finished_when_it_resumes(tmp_path: Path):
    settings = ["trainer.max_time=00:00:00:01", "trainer.max_epochs=1000", "callbacks.early_stopping=null"]
    config = small_config(*settings, "checkpoint_interval_minutes=60")
    whole, copies = tmp_path / "whole", tmp_path / "copies"
    small_run(config, whole, callbacks=[Kills(whole, copies)])
    killed = max(copies.iterdir(), key=lambda folder: (folder / LAST).stat().st_mtime_ns)
    assert not read(killed / LAST)["callbacks"]["LastCheckpoint"]["finished"]
    small_run(config, killed, killed / LAST)
    assert read(killed / LAST)["callbacks"]["LastCheckpoint"]["finished"]


def test_nothing_is_lost_by_being_killed_again_and_again(uninterrupted: Path, tmp_path: Path):
    """Each time one step further, and always in the same folder."""
    run = tmp_path / "run"

    class Killed(BaseException):
        pass

    class KillAfterTwo(Callback):
        steps = 0

        def on_train_batch_start(self, *_: Any) -> None:
            self.steps += 1
            if self.steps == 3:
                raise Killed

    for _ in range(4):
        with pytest.raises(Killed):
            small_run(small_config(), run, run / LAST if (run / LAST).exists() else None, [KillAfterTwo()])
    small_run(small_config(), run, run / LAST)
    assert_ends_as(uninterrupted, run)


EXTENDED = {
    "averaged weights": ["callbacks=ema"],
    "round robin": ["data.bucketing=round_robin", "schedule.warmup=3"],
    "adam": [],
    "hard": ["attention=hard", "attention.num_samples=2"],
    "workers": ["data.num_workers=2"],
    "validation within the epoch": ["trainer.val_check_interval=2"],
}


@pytest.mark.parametrize("settings", slow_after(1, EXTENDED.values()), ids=EXTENDED)
def test_a_finished_run_that_is_extended_ends_as_one_that_was_as_long_from_the_start(
    tmp_path: Path, settings: list[str]
):
    whole, extended, settings = tmp_path / "whole", tmp_path / "extended", ["schedule=constant", *settings]
    small_run(small_config("trainer.max_epochs=4", *settings), whole)
    small_run(small_config("trainer.max_epochs=2", *settings), extended)
    small_run(small_config("trainer.max_epochs=4", *settings), extended, extended / LAST)
    assert_ends_as(whole, extended)


def test_an_extended_run_follows_its_schedule_over_the_new_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Also in its first step, though the checkpoint has the last rate of the former schedule, which is 0."""
    rates = []

    class Rates(Callback):
        def on_before_optimizer_step(self, trainer: lightning.Trainer, module: Any, optimizer: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    settings = ["schedule=cosine", "schedule.warmup=0"]
    small_run(small_config("trainer.max_epochs=2", *settings), tmp_path)
    assert "the learning rate goes" not in capsys.readouterr().out
    small_run(small_config("trainer.max_epochs=4", *settings), tmp_path, tmp_path / LAST, [Rates()])
    assert (
        "note: the learning rate goes from 0 to 0.005, because the schedule ends at another" in capsys.readouterr().out
    )
    assert rates == pytest.approx([0.01 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(10, 20)])
