"""What a run keeps of itself: the best checkpoint, and the last one, from which it goes on."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from showattendtell.checkpoint import save
from showattendtell.config.entry import as_argument
from showattendtell.errors import UserError
from showattendtell.files import LAST, PREVIOUS
from showattendtell.processes import any_process, gather, rank
from showattendtell.random_states import random_states, set_random_states
from showattendtell.stopping import Notice

VALIDATION = "epoch_loop.val_loop.batch_progress"


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint with all its content or not at all.

    Lightning's own may leave half of it where it writes to another disk than that of its temporary files, and does not
    wait until the disk has it.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Raises `UserError` where it cannot be written; what was there stays.

        Args:
            storage_options: `keep`, the name that what was there gets.
        """
        file = Path(path)
        try:
            save(checkpoint, file, (storage_options or {}).get("keep"))
        except OSError as fault:
            raise UserError(
                f"{file} cannot be written ({fault.strerror}); what was saved before is whole, and with room the run "
                "goes on from there with resume=true"
            ) from None


class BestCheckpoint(ModelCheckpoint):
    """Lightning's, with a memory that outlives a move of the run's folder."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return path and os.path.join(self.dirpath or "", os.path.basename(path))

        paths = {name: here(state_dict[name]) for name in ("best_model_path", "kth_best_model_path")}
        scores = {here(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict({**state_dict, **paths, "best_k_models": scores, "dirpath": self.dirpath})


class LastCheckpoint(Callback):
    """Writes `last.ckpt`, from which a run that was ended at any moment goes on as if it had not been, and leaves the
    one before as `previous.ckpt`.

    It is written between two steps if `minutes` have passed, before every validation, at the end, and where a signal
    asks the run to stop. Lightning goes on exactly from the end of a batch that ends a step, if no validation and not
    the epoch's end follow, which it would leave out, and from within a validation. Before a validation its progress is
    therefore written as if the first batch of it had begun. Random states, of which Lightning's checkpoints have none,
    are set where the run takes its next random number: what is drawn while it is set up again does not count. The
    figures of the last validation are what callbacks go by until the next.

    Args:
        minutes: 0 for a checkpoint after every step.
    """

    def __init__(self, folder: Path, minutes: float, notice: Notice):
        self._folder, self._seconds, self._notice = folder, 60 * minutes, notice
        self._written = time.monotonic()
        self._random: dict[str, dict[str, Any]] = {}
        self._figures: dict[str, Tensor] = {}
        self._finished = self._is_kept = False

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._written = time.monotonic()
        self._notice.listen()
        trainer.callback_metrics.update({name: figure.to(module.device) for name, figure in self._figures.items()})
        if rank() == 0 and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._remove_useless(trainer.ckpt_path)

    def on_train_batch_start(self, *_: Any) -> None:
        self._draw_on()

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._is_kept = self._draw_on()
        if not self._is_kept and not trainer.fit_loop._should_accumulate():
            self._write(trainer)
            self._is_kept = True
        self.on_validation_batch_end(trainer)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if not self._between_steps(trainer):
            return
        due = time.monotonic() - self._written >= self._seconds
        if any_process(due or self._notice.signal is not None):
            self._write(trainer)
        if any_process(self._notice.signal is not None):
            self._stop(trainer)

    def on_validation_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Processes have different numbers of these batches, and each stops for itself."""
        if self._notice.signal and self._is_kept:  # else the step that validation came into is not at its end
            self._stop(trainer)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._finished = True
        self._write(trainer)
        if rank() == 0:
            (self._folder / PREVIOUS).unlink(missing_ok=True)

    def _remove_useless(self, start: str | Path | None) -> None:
        """What another run has left in this folder; and a last checkpoint that is damaged, for it would soon be the
        previous one."""
        useful = set() if start is None else {PREVIOUS} if Path(start).name == PREVIOUS else {LAST, PREVIOUS}
        for name in {LAST, PREVIOUS} - useful:
            (self._folder / name).unlink(missing_ok=True)

    @staticmethod
    def _between_steps(trainer: lightning.Trainer) -> bool:
        loop = trainer.fit_loop.epoch_loop
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        ends = loop._is_training_done or loop._should_check_val_fx(fetcher)
        return not ends and not loop._should_accumulate()

    def _write(self, trainer: lightning.Trainer) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._figures = {name: figure.cpu() for name, figure in trainer.callback_metrics.items()}
        trainer.save_checkpoint(self._folder / LAST, storage_options={"keep": self._folder / PREVIOUS})
        self._written = time.monotonic()

    def _stop(self, trainer: lightning.Trainer) -> None:
        if rank() == 0:
            print(
                f"stopped after step {trainer.global_step}, which is saved; go on with\n"
                f"  python -m showattendtell.train {as_argument('resume', self._folder)}",
                file=sys.stderr,
            )
        self._notice.obey()

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.validating:
            total = checkpoint["loops"]["fit_loop"][VALIDATION]["total"]
            done = total["completed"]
            total.update(ready=done + 1, started=done + 1, processed=done)

    def state_dict(self) -> dict[str, Any]:
        states = gather({str(rank()): random_states()})
        return {"finished": self._finished, "random": states, "figures": self._figures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random, self._figures = state["random"], state["figures"]

    def _draw_on(self) -> bool:
        """Set the random states of the checkpoint, if the run has just gone on from one."""
        states, self._random = self._random, {}
        if str(rank()) in states:
            set_random_states(states[str(rank())])
        return bool(states)
