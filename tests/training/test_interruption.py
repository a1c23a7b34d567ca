"""A run that is asked to stop saves first, at whatever moment; one whose loss is no number ends."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from killed_runs import assert_ends_as, read
from pytorch_lightning.callbacks import Callback
from slow_cases import slow_after
from small_training import small_config, small_run

from showattendtell.errors import UserError
from showattendtell.runtime.files import LAST
from showattendtell.training.interruption import UNCHECKED, SignalHandler, report_lost_workers

pytestmark = pytest.mark.filterwarnings("ignore")


class Sender(Callback):
    """Sends this process a signal in a batch of training, or of validation."""

    def __init__(self, number: signal.Signals, training: int | None = None, validation: int | None = None):
        self._number, self._training, self._validation = number, training, validation

    def on_before_backward(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.total_batch_idx == self._training:
            os.kill(os.getpid(), self._number)

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, index: int, *_: Any) -> None:
        if index == self._validation:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize(
    ("number", "status"),
    slow_after(1, [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]),
    ids=str,
)
def test_a_signal_stops_after_the_step_which_is_saved(
    uninterrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, status: int
):
    if number is not signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, also in what it starts
    before = signal.getsignal(number)
    config, run = small_config("checkpoint_interval_minutes=60"), tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        small_run(config, run, callbacks=[Sender(number, training=6)])
    assert stopped.value.code == status
    assert signal.getsignal(number) is before
    output = capfd.readouterr().err
    assert "stopped after step 7, which is saved; resume with" in output
    assert f"train resume={run}" in output
    assert read(run / LAST)["global_step"] == 7
    small_run(config, run, run / LAST)
    assert_ends_as(uninterrupted, run)


def test_a_run_of_nohup_goes_on(tmp_path: Path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        small_run(small_config(), tmp_path, callbacks=[Sender(signal.SIGHUP, training=6)])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert read(tmp_path / LAST)["global_step"] == 10


MOMENTS = {
    "in validation": ([], {"validation": 1}, 5),
    "in a part of a step": (["trainer.accumulate_grad_batches=2", "trainer.limit_train_batches=6"], {"training": 2}, 2),
    "in the last step of an epoch": ([], {"training": 4}, 5),
    "in an epoch without validation": (["trainer.check_val_every_n_epoch=2"], {"training": 4}, 6),
}


@pytest.mark.parametrize(("settings", "moment", "step"), slow_after(1, MOMENTS.values()), ids=MOMENTS)
def test_a_signal_at_any_moment_loses_nothing(tmp_path: Path, settings: list[str], moment: dict[str, int], step: int):
    config, whole, run = small_config("checkpoint_interval_minutes=60", *settings), tmp_path / "whole", tmp_path / "run"
    small_run(config, whole)
    with pytest.raises(SystemExit):
        small_run(config, run, callbacks=[Sender(signal.SIGTERM, **moment)])
    assert read(run / LAST)["global_step"] == step
    small_run(config, run, run / LAST)
    assert_ends_as(whole, run)


def test_a_second_interruption_does_not_wait_for_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    class Gone(BaseException):
        pass

    def leave(status: int) -> None:
        raise Gone(status)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr("showattendtell.training.interruption.ONE_KEY", -1)
    twice = [Sender(signal.SIGINT, training=2), Sender(signal.SIGINT, training=2)]
    with pytest.raises(Gone, match="130"):
        small_run(small_config(), tmp_path, callbacks=twice)
    assert "saving after this step; Ctrl-C again stops at once" in capfd.readouterr().err
    assert read(tmp_path / LAST)["global_step"] == 2


def test_an_interruption_that_comes_twice_at_once_is_one(tmp_path: Path):
    """From the terminal, and from the process that has started this one."""
    twice = [Sender(signal.SIGINT, training=2), Sender(signal.SIGINT, training=2)]
    with pytest.raises(SystemExit, match="130"):
        small_run(small_config(), tmp_path, callbacks=twice)
    assert read(tmp_path / LAST)["global_step"] == 3


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of SLURM, and a `scontrol` that writes down its arguments."""
    message, scontrol = tmp_path / "message", tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {message}\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_JOB_NAME", "captions")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    return message


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGUSR1, "requeue 12\n"), (signal.SIGTERM, ""), (signal.SIGINT, "")], ids=str
)
def test_slurm_is_requested_to_run_the_job_again_where_it_gave_signals(
    slurm: Path, number: signal.Signals, expected: str
):
    handler = SignalHandler()
    handler.signal = number
    with pytest.raises(SystemExit):
        handler.end_process()
    assert (slurm.read_text() if slurm.exists() else "") == expected


class Poison(Callback):
    """Makes the loss NaN or infinite at a batch."""

    def __init__(self, batch: int, value: float):
        self._batch, self._value = batch, value

    def on_train_batch_start(self, trainer: lightning.Trainer, module: Any, batch: Any, index: int) -> None:
        if trainer.fit_loop.epoch_loop.total_batch_idx == self._batch:
            with torch.no_grad():
                next(parameter for name, parameter in module.named_parameters() if "output" in name).fill_(self._value)


@pytest.mark.parametrize("batch", slow_after(1, [4, 0, 7]))
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, batch: int):
    """The last of an epoch, the first of the run, one in the middle of the next epoch."""
    with pytest.raises(UserError, match=rf"the loss of step {batch + 1} is nan; lower optimizer\.lr"):
        small_run(small_config(), tmp_path, callbacks=[Poison(batch, float("nan"))])
    assert_saved_weights_are_finite(tmp_path)


@pytest.mark.parametrize("settings", slow_after(1, [[], ["decoding=sample"], ["attention=hard"]]))
def test_weights_that_are_no_numbers_are_neither_saved_nor_captioned_with(tmp_path: Path, settings: list[str]):
    """The loss of the epoch's only step is finite; the step is not."""
    config = small_config(
        "trainer.limit_train_batches=1", "optimizer.lr=1e30", "optimizer.weight_decay=1e30", *settings
    )
    with pytest.raises(UserError, match=r"step 1 has left weights that are not finite; lower optimizer\.lr"):
        small_run(config, tmp_path)
    assert not list(tmp_path.glob("*.ckpt"))


UNREAD = {
    "before anything is saved": (7, ["checkpoint_interval_minutes=0"], 8),
    "after a few": (7, [], 9),
    "before the batches of the next epoch are drawn": (4, ["++trainer.check_val_every_n_epoch=2"], 5),
}


@pytest.mark.parametrize(("batch", "settings", "steps"), slow_after(2, UNREAD.values()), ids=UNREAD)
def test_losses_of_a_gpu_are_read_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, settings: list[str], steps: int
):
    monkeypatch.setitem(UNCHECKED, "cpu", 4)
    poison, trained = Poison(batch, float("nan")), []

    class Count(Callback):
        def on_before_backward(self, trainer: lightning.Trainer, *_: Any) -> None:
            trained.append(trainer.global_step)

    with pytest.raises(UserError, match=f"the loss of step {batch + 1} is nan"):
        small_run(small_config("checkpoint_interval_minutes=60", *settings), tmp_path, callbacks=[poison, Count()])
    assert len(trained) == steps
    assert_saved_weights_are_finite(tmp_path)


def assert_saved_weights_are_finite(folder: Path) -> None:
    for file in folder.glob("*.ckpt"):
        assert all(value.isfinite().all() for value in read(file)["state_dict"].values())


WORKER = "DataLoader worker (pid 12)"
LOST = [
    (RuntimeError(f"{WORKER} is killed by signal: Killed. "), "killed by signal: Killed"),
    (
        RuntimeError(f"{WORKER} exited unexpectedly with exit code 1. Details are"),
        "exited unexpectedly with exit code 1",
    ),
    (ConnectionResetError(104, "Connection reset by peer"), "its batch did not arrive"),
    (EOFError(), "its batch did not arrive"),
]


@pytest.mark.parametrize(("fault", "message"), LOST, ids=repr)
def test_a_process_that_reads_and_is_gone_is_reported(fault: Exception, message: str):
    """Also where a file was being written, of which torch raises an error of its own."""
    second = RuntimeError("unexpected pos 64 vs 0")
    second.__context__ = fault
    for raised in (fault, second):
        with (
            pytest.raises(UserError, match=rf"ended \({message}\), perhaps because memory ran out"),
            report_lost_workers(True),
        ):
            raise raised
    if WORKER not in str(fault):
        with pytest.raises(type(fault)), report_lost_workers(False):
            raise fault
