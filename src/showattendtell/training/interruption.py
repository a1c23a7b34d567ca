"""Early ends of a run: signals, losses that are not finite, and lost worker processes."""

import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.process import stop_signals

REQUEUE = signal.SIGUSR1
"""Signal that schedulers send some time before they stop a job."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit status after Ctrl-C, and after the other signals, as in shells."""

ONE_KEY = 1.0
"""Seconds within which two interrupts count as one key press, from the terminal and from the launcher."""

STABLE = "lower optimizer.lr or set trainer.gradient_clip_val, and train again"

UNCHECKED = {"cuda": 20}
"""Losses that are read at once, by kind of device; by default each."""

RESUME = "the same command with resume=true continues from the last checkpoint, if one was saved"

LOST_WORKER = re.compile(r"DataLoader worker \(pid[^.]*?\d\) (?:is )?([^.]+)")
"""Matches torch's message about a lost data loader worker, with or without its signal."""


class SignalHandler:
    """Catches SIGTERM, SIGHUP, a scheduler's SIGUSR1 or Ctrl-C until the run can save a checkpoint.

    Lightning's own handlers do not wait: for SIGTERM it stops after any batch, even within a step of several batches,
    and for SLURM it saves at any point within a step.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._received = 0.0

    def install(self) -> None:
        """Catch the signals from now on; Lightning restores the handlers at the end."""
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == self.signal == signal.SIGINT and time.monotonic() - self._received > ONE_KEY:
            if os.isatty(2):  # show the cursor that a progress bar has hidden
                os.write(2, b"\x1b[?25h\n")
            os._exit(INTERRUPTED)
        if number == signal.SIGHUP:
            for stream in (1, 2):  # a terminal that is gone; to write there would be an error
                if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if number == signal.SIGINT != self.signal and rank() == 0:
            os.write(2, b"\nsaving after this step; Ctrl-C again stops at once\n")
        self.signal, self._received = signal.Signals(number), time.monotonic()

    def end_process(self) -> None:
        """End the process; under SLURM, which sends SIGUSR1 on request, requeue the job."""
        if self.signal == REQUEUE and "SLURM_JOB_ID" in os.environ and rank() == 0:
            array = os.environ.get("SLURM_ARRAY_JOB_ID")
            job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
            subprocess.run(["scontrol", "requeue", job], check=False)
        sys.exit(INTERRUPTED if self.signal == signal.SIGINT else TERMINATED)


class FiniteLoss(Callback):
    """Ends the run if the loss, or a weight after the step, is NaN or infinite, before such weights are saved or used
    for captions. Lightning's `EarlyStopping(check_finite)` looks after a validation, when they have been.

    To read a loss waits for the GPU: several are checked at once, at the end of an epoch, and before anything is saved.
    """

    def __init__(self) -> None:
        self._losses: list[tuple[int, Tensor]] = []  # not yet checked, each after its step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if isinstance(outputs, Mapping) and "loss" in outputs:
            self._losses.append((trainer.global_step, outputs["loss"]))
            if len(self._losses) >= UNCHECKED.get(trainer.strategy.root_device.type, 1):
                self._check()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check()
        trainable = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        if not torch.stack([parameter.isfinite().all() for parameter in trainable]).all():
            raise UserError(f"step {trainer.global_step} has left weights that are not finite; {STABLE}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.on_validation_start(trainer, pl_module)

    def _check(self) -> None:
        """Raise a `UserError` if a loss is not finite."""
        losses, self._losses = self._losses, []
        for step, loss in losses:
            if not loss.isfinite():
                raise UserError(f"the loss of step {step} is {loss.item()}; {STABLE}")


class WorkerShutdown(Callback):
    """Kills the data loader's workers if the run ends early. At exit torch would wait for each, and stop at one that is
    gone; the others would run on."""

    def on_exception(self, *_: Any) -> None:
        in_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if in_main_thread else None  # torch's raises an error
        for worker in multiprocessing.active_children():
            if worker.daemon:
                worker.kill()
                worker.join()
        if in_main_thread:
            signal.signal(signal.SIGCHLD, handler)


@contextmanager
def report_lost_workers(has_workers: bool) -> Iterator[None]:
    """Convert the loss of one of the data loader's workers to a `UserError`. torch raises its error anywhere in the
    training process, even in the middle of writing a file."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        cause: BaseException | None = error
        while cause:
            found = LOST_WORKER.match(str(cause))
            # before the worker's end is known, a batch from it fails to arrive
            if found or (has_workers and isinstance(cause, ConnectionError | EOFError)):
                lost = found[1].strip() if found else "its batch did not arrive"
                raise UserError(
                    f"a process that reads images has ended ({lost}), perhaps because memory ran out; {RESUME}, "
                    "if necessary with a smaller data.num_workers"
                ) from None
            cause = cause.__context__
        raise
