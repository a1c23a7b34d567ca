"""What a training tells the study that it is a trial of, and how a hopeless one ends."""

from typing import TYPE_CHECKING

import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Callback

from showattendtell.config.search import is_trial
from showattendtell.processes import any_process, rank
from showattendtell.progress import Monitor

if TYPE_CHECKING:
    from showattendtell.config.trial import OwnTrial


class TrialReport(Callback):
    """Reports each validation's figure to the study, and ends training where its pruner says so.

    The first process alone knows the study.

    Args:
        trial: None in the other processes.
    """

    def __init__(self, trial: "OwnTrial | None", monitor: Monitor):
        self._trial, self._monitor = trial, monitor

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        hopeless = False
        if self._trial:
            self._trial.report(float(trainer.callback_metrics[self._monitor.metric]), _number(trainer))
            hopeless = self._trial.is_hopeless()
        if any_process(hopeless):
            trainer.should_stop = True
            if rank() == 0:
                print("the study's other trials were better by now; this one ends")

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._trial:
            self._trial.keep_time()


def _number(trainer: lightning.Trainer) -> int:
    """Of this validation, from 1."""
    assert trainer.val_check_batch
    return int((trainer.fit_loop.epoch_loop.total_batch_idx + 1) // trainer.val_check_batch)


def trial_callbacks(monitor: Monitor) -> list[Callback]:
    """None for a run that is no trial."""
    if not is_trial():
        return []
    from showattendtell.config.trial import own_trial

    return [TrialReport(own_trial() if rank() == 0 else None, monitor)]
