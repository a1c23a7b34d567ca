"""Checkpoints of a run: the best one, and the last one, from which training resumes."""

import math
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.optim import Optimizer

from showattendtell.config.command_line import as_argument, as_command
from showattendtell.loading.checkpoints import save
from showattendtell.runtime.distributed import any_rank, gather, rank
from showattendtell.runtime.files import BEST, LAST, PREVIOUS, write_errors
from showattendtell.training.interruption import RESUME, SignalHandler

VALIDATION_PROGRESS = "epoch_loop.val_loop.batch_progress"
"""Private entry of Lightning's checkpoints, as are the attributes with an underscore in the functions below. A test
fails if a new version changes one of them; pyproject.toml lists the tested versions."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint completely or not at all.

    Lightning's own class may leave half a file when its temporary files are on another disk than the checkpoint, and
    does not wait until the data are on disk.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint.

        Args:
            storage_options: may have `keep`, the new name of the file that was there.

        Raises:
            UserError: the file cannot be written; the existing one is kept.
        """
        with write_errors(Path(path), f"check the disk; {RESUME}"):  # and make the folder, as Lightning does
            save(checkpoint, Path(path), (storage_options or {}).get("keep"))


class BestCheckpoint(ModelCheckpoint):
    """`ModelCheckpoint` whose state stays valid when the run's folder is moved."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning deletes the files that these paths name: allow the best checkpoint only.
        local = {**state_dict, "dirpath": self.dirpath}
        best = os.path.join(self.dirpath or "", BEST)
        for name in ("best_model_path", "kth_best_model_path"):
            local[name] = best if state_dict[name] else ""
        _, *_ = map(float, (state_dict["kth_value"], *state_dict["best_k_models"].values()))  # raises for other types
        local["best_k_models"] = dict(zip([best], state_dict["best_k_models"].values(), strict=False))  # one at most
        super().load_state_dict(local)


class LastCheckpoint(Callback):
    """Writes `last.ckpt`, from which an interrupted run resumes exactly, and keeps the one before as `previous.ckpt`.

    It is written between two steps once `minutes` have passed, before every validation, at the end, and when a signal
    asks the run to stop. Lightning resumes exactly from within a validation, or from the end of a batch that ends a
    step, unless a validation or the end of the epoch follows, which it would skip. Before a validation the progress is
    therefore stored as if its first batch had begun. Lightning's checkpoints have no random states: they are restored
    when the run draws its next random number, so draws during set-up do not count.

    Args:
        minutes: interval between two checkpoints; 0 writes one after every step.
    """

    def __init__(self, folder: Path, minutes: float):
        self._folder, self._seconds, self._signals = folder, 60 * minutes, SignalHandler()
        self._last_saved = time.monotonic()
        self._random_states: dict[str, dict[str, Any]] = {}
        self._finished = self._is_saved = False
        self.num_batches = 0
        """Batches that training has begun. The first one needs all of a checkpoint's state."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning skips a run whose steps or time are over, also if it stopped in the validation after the last step.
        # Until it has resumed, there is one step more, and no time ends it.
        loop: Any = trainer.fit_loop.epoch_loop
        self._limits = loop.min_steps, loop.max_steps
        if self._random_states:
            loop.min_steps, loop.max_steps = math.inf, loop.max_steps + (loop.max_steps > 0)
        for optimizer in trainer.optimizers:
            optimizer.register_load_state_dict_pre_hook(check_optimizer_state)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A checkpoint restores the rates of its own schedule; if the run is extended, they belong to the former length.
        for config in trainer.lr_scheduler_configs:
            scheduler: Any = config.scheduler  # a LambdaLR
            groups = scheduler.optimizer.param_groups
            before = groups[0]["lr"]
            for group, base, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
                group["lr"] = base * factor(scheduler.last_epoch)
            rate = groups[0]["lr"]
            if rank() == 0 and not math.isclose(before, rate):
                change = f"goes from {before:.2g} to {rate:.2g}, because the schedule ends at another step"
                print(f"note: the learning rate {change}")
        self._last_saved = time.monotonic()
        self._signals.install()
        if rank() == 0 and trainer.ckpt_path and Path(trainer.ckpt_path).name == PREVIOUS:
            (self._folder / LAST).unlink(missing_ok=True)  # it is damaged, and would soon become the previous one

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        trainer.callback_metrics.clear()  # an epoch without validation has none of another epoch
        self._restore_draws(trainer)  # before batches are drawn, if the checkpoint ends an epoch

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._restore_draws(trainer)
        self.num_batches += 1

    def _restore_draws(self, trainer: Trainer) -> None:
        """Restore the checkpoint's random states, if the run has just resumed from one."""
        loop: Any = trainer.fit_loop.epoch_loop
        loop.min_steps, loop.max_steps = self._limits
        states, self._random_states = self._random_states, {}
        if str(rank()) in states:
            set_random_states(states[str(rank())])

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_saved = bool(self._random_states)  # by the checkpoint from which the run has just resumed
        self._restore_draws(trainer)
        if not self._is_saved and not is_accumulating(trainer):
            self._write(trainer)
            self._is_saved = True
        self.on_validation_batch_end(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not is_between_steps(trainer):
            return
        is_due = time.monotonic() - self._last_saved >= self._seconds
        if any_rank(is_due or self._signals.signal is not None):
            self._write(trainer)
        if any_rank(self._signals.signal is not None):
            self._stop(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Processes have different numbers of validation batches; each stops on its own."""
        if self._signals.signal and self._is_saved:  # otherwise the step that started this validation is not complete
            self._stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._finished = True
        self._write(trainer)
        if rank() == 0:
            (self._folder / PREVIOUS).unlink(missing_ok=True)

    def _write(self, trainer: Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        trainer.save_checkpoint(self._folder / LAST, storage_options={"keep": self._folder / PREVIOUS})
        self._last_saved = time.monotonic()

    def _stop(self, trainer: Trainer) -> None:
        if rank() == 0:
            number = trainer.num_devices
            devices = f" trainer.devices={number}" if number > 1 else ""
            print(
                f"stopped after step {trainer.global_step}, which is saved; resume with\n"
                f"  {as_command('train')} {as_argument('resume', self._folder)}{devices}",
                file=sys.stderr,
            )
        self._signals.end_process()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.validating:
            mark_validation_as_begun(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        states = gather({str(rank()): random_states()})
        return {"finished": self._finished, "random": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random_states = state["random"]


def check_optimizer_state(optimizer: Optimizer, loaded: dict[str, Any]) -> None:
    """Raise a `ValueError` unless every loaded tensor is laid out like its parameter, or is a number such as `step`.

    Fused optimizers check neither, and write beyond the end of a tensor that is smaller.
    """
    numbers = [number for group in loaded["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        layouts = [_layout(parameter), _layout(torch.tensor(0.0))]
        for name, value in loaded["state"].get(number, {}).items():
            is_number = value is None or isinstance(value, int | float)
            if not is_number and not (isinstance(value, Tensor) and _layout(value) in layouts):
                raise ValueError(f"the optimizer's {name} of parameter {number} has another layout than the parameter")
            if name == "step" and not 0 <= value < math.inf:
                raise ValueError(f"the optimizer has had {value} steps of parameter {number}")


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    """Return all that determines where in memory the values are, of a tensor as it is made with `empty_like`."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return (tensor.layout,)
    return tensor.shape, tensor.dtype, tensor.stride()


def is_accumulating(trainer: Trainer) -> bool:
    """Return whether the step of the current batch needs further batches."""
    return trainer.fit_loop.epoch_loop._should_accumulate()


def is_between_steps(trainer: Trainer) -> bool:
    """Return whether the batch that just ended completes a step, with another batch following immediately."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    assert fetcher is not None
    ends = loop._is_training_done or loop._should_check_val_fx(fetcher)
    return not ends and not loop._should_accumulate()


def mark_validation_as_begun(checkpoint: dict[str, Any]) -> None:
    """Make a run that resumes from this checkpoint begin with the validation that is about to start."""
    total = checkpoint["loops"]["fit_loop"][VALIDATION_PROGRESS]["total"]
    done = total["completed"]
    total.update(ready=done + 1, started=done + 1, processed=done)


def random_states() -> dict[str, Any]:
    """Return the states of Python, NumPy, torch and its GPU, in types that weights-only unpickling accepts."""
    kind, key, *position = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(key).tolist(), *position],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the states that `random_states` returned; that of the GPU only if both processes have one."""
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
