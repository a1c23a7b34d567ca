"""Reports of a training run to its hyperparameter study, and pruning of poor trials."""

from typing import TYPE_CHECKING

import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Callback

from showattendtell.config.sweeper import is_trial
from showattendtell.runtime.distributed import any_rank, rank
from showattendtell.training.callbacks.progress import MonitoredMetrics

if TYPE_CHECKING:
    from showattendtell.config.study import CurrentTrial


class TrialPruning(Callback):
    """Reports each validation metric to the study, and stops training if the study's pruner says so.

    Only the first process has access to the study.

    Args:
        trial: the trial; None in the other processes.
    """

    def __init__(self, trial: "CurrentTrial | None", monitor: MonitoredMetrics):
        self._trial, self._monitor = trial, monitor

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        hopeless = False
        if self._trial:
            self._trial.report(float(trainer.callback_metrics[self._monitor.metric]), _number(trainer))
            hopeless = self._trial.is_hopeless()
        if any_rank(hopeless):
            trainer.should_stop = True
            if rank() == 0:
                print("the study's other trials were better by now; this one ends")

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._trial:
            self._trial.keep_time()


def _number(trainer: lightning.Trainer) -> int:
    """Return the number of this validation, from 1."""
    assert trainer.val_check_batch
    return int((trainer.fit_loop.epoch_loop.total_batch_idx + 1) // trainer.val_check_batch)


def trial_callbacks(monitor: MonitoredMetrics) -> list[Callback]:
    """Return the callbacks of a trial; none for a run that is not a trial."""
    if not is_trial():
        return []
    from showattendtell.config.study import current_trial

    return [TrialPruning(current_trial() if rank() == 0 else None, monitor)]
