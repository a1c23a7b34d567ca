"""The Lightning Trainer of a run: what it logs, what it keeps, when it stops."""

import logging
import time
import warnings
from pathlib import Path

import pytorch_lightning as lightning
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, Logger
from rich.console import Console

from showattendtell.config.build import build
from showattendtell.config.check import TARGET
from showattendtell.errors import UserError
from showattendtell.report.curves import draw_curves, read_metrics

MONITOR = "val/bleu4"

QUIET = (
    r"Experiment logs directory .* exists and is not empty",  # Hydra keeps the run's configuration there
    r"Checkpoint directory .* exists and is not empty",
    r"Found \d+ module\(s\) in eval mode",  # the frozen encoder
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches .* is smaller than the logging interval",  # figures are logged per epoch
    r"The '.*_dataloader' does not have many workers",  # grids are read from memory
)
"""Warnings of Lightning that are no news here."""


def build_trainer(config: DictConfig, folder: Path) -> tuple[lightning.Trainer, ModelCheckpoint]:
    """A Trainer that keeps `best.ckpt` (by validation BLEU-4), `last.ckpt`, a CSV log and its curve in `folder`;
    and what knows the best score."""
    if config.trainer.get("limit_val_batches") == 0:
        raise UserError("trainer.limit_val_batches=0 leaves nothing to choose the best checkpoint by; take 1 or more")
    if config.trainer.get("devices", 1) not in (1, "1", "auto") or config.trainer.get("num_nodes", 1) != 1:
        raise UserError("training on several devices is not built yet; leave trainer.devices and num_nodes at 1")
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)
    csv = CSVLogger(folder, name="", version="")
    keep = ModelCheckpoint(
        folder, filename="best", monitor=MONITOR, mode="max", save_last=True, enable_version_counter=False
    )
    callbacks: list[Callback] = [keep, build(config.early_stopping, monitor=MONITOR, mode="max"), EpochReport(csv)]
    console = Console(stderr=True)
    if console.is_terminal:
        callbacks.append(RichProgressBar())
    trainer = build(
        config.trainer,
        default_root_dir=folder,
        logger=[csv, *extra_loggers(config, folder)],
        callbacks=callbacks,
        enable_progress_bar=console.is_terminal,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    return trainer, keep


def extra_loggers(config: DictConfig, folder: Path) -> list[Logger]:
    """The logger that `logger=` chose, if it is another than CSV."""
    if not config.get("logger") or TARGET not in config.logger:
        return []
    return [build(config.logger, save_dir=str(folder))]


class EpochReport(Callback):
    """A line per epoch on the screen, and the learning curve drawn anew."""

    def __init__(self, log: CSVLogger):
        self._log = log
        self._best = float("-inf")
        self._started = time.monotonic()
        self._console = Console(highlight=False)

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if MONITOR not in values:
            return
        self._best = max(self._best, values.get(MONITOR, self._best))
        seconds = time.monotonic() - self._started
        self._console.print(
            f"epoch {trainer.current_epoch + 1:>3}: -log p per word {values['train/nll_per_word']:.3f} in training, "
            f"{values['val/nll_per_word']:.3f} in validation; BLEU-4 {values[MONITOR]:.1f} (best {self._best:.1f}), "
            f"{values['val/distinct_captions']:.0f} distinct captions; {seconds:.0f} s",
            soft_wrap=True,
        )

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._log.save()
        path = Path(self._log.log_dir)
        draw_curves(read_metrics(path / "metrics.csv"), path / "learning_curve.png")
