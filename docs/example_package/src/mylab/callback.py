"""A callback of training."""

from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer

from showattendtell.settings import Text


class ScoreLog(Callback):
    """Writes a metric of each validation as a line of a file.

    Args:
        file: the file, to which lines are appended.
        metric: the name of the metric.
    """

    def __init__(self, file: Text, metric: Text = "val/bleu4"):
        self.file = Path(file)
        self.metric = metric

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and trainer.is_global_zero:
            with self.file.open("a") as log:
                log.write(f"{trainer.current_epoch} {trainer.callback_metrics[self.metric]:.2f}\n")
