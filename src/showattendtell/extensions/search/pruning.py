"""The callback that reports a trial to its study."""

import warnings
from pathlib import Path

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from optuna.samplers import RandomSampler
from optuna.trial import Trial, TrialState
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

from showattendtell.extensions.search.study import open_storage, storage_errors
from showattendtell.runtime.distributed import any_rank, rank
from showattendtell.training.progress import best_of

# a resumed run may repeat the validation before which it was interrupted
warnings.filterwarnings("ignore", "The reported value is ignored because this `step`")


class TrialPruning(Callback):
    """In a trial, reports each validation metric to the study, and stops training if the study's pruner says so.

    Only the first process has access to the study.
    """

    def __init__(self) -> None:
        self._trial: Trial | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if rank() == 0:
            about = HydraConfig.get()
            self._folder = Path(about.sweep.dir)
            study = optuna.load_study(
                study_name=about.sweeper.study_name,
                storage=open_storage(about.sweeper.storage, self._folder),
                sampler=RandomSampler(),  # it proposes nothing here
                pruner=instantiate(about.sweeper.pruner),
            )
            self._trial = Trial(study, study.trials[int(about.sweep.subdir)]._trial_id)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_pruned = False
        if self._trial:
            metric = trainer.callback_metrics[str(best_of(trainer).monitor)]
            batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
            step = int(batches // trainer.val_check_batch)  # type: ignore[operator]
            with storage_errors(self._folder):
                self._trial.report(float(metric), step)
                if is_pruned := self._trial.should_prune():
                    self._trial.study.tell(self._trial, state=TrialState.PRUNED)
                    print("this trial is pruned: others were better at this epoch")
        if any_rank(is_pruned):
            trainer.should_stop = True
