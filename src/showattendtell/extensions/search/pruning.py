"""The callback that reports a trial to its study."""

from pathlib import Path

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from optuna.samplers import RandomSampler
from optuna.trial import Trial
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from showattendtell.extensions.search.study import current_trial, open_storage
from showattendtell.runtime.distributed import any_rank, rank
from showattendtell.training.progress import best_of


class TrialPruning(Callback):
    """In a trial, reports each validation metric to the study, and stops training if the study's pruner says so.

    Only the first process has access to the study.
    """

    def __init__(self) -> None:
        self._trial: Trial | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if rank() == 0:
            about = HydraConfig.get()
            study = optuna.load_study(
                study_name=about.sweeper.study_name,
                storage=open_storage(about.sweeper.storage, Path(about.sweep.dir)),
                sampler=RandomSampler(),  # it proposes nothing here
                pruner=instantiate(about.sweeper.pruner),
            )
            self._trial = current_trial(study, int(about.sweep.subdir))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        should_prune = False
        if self._trial:
            metric = trainer.callback_metrics[str(best_of(trainer).monitor)]
            batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
            self._trial.report(float(metric), int(batches // trainer.val_check_batch))  # type: ignore[operator]
            should_prune = self._trial.should_prune()
            if should_prune:
                self._trial.set_user_attr("pruned", True)
        if any_rank(should_prune):
            trainer.should_stop = True
            if rank() == 0:
                print("this trial is pruned: others were better at this epoch")
