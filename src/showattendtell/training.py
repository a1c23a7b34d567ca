"""The Lightning Trainer of a run: what it logs, what it keeps, when it stops."""

import logging
import warnings
from pathlib import Path

import pytorch_lightning as lightning
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger
from rich.console import Console

from showattendtell.config.build import build
from showattendtell.errors import UserError
from showattendtell.loggers import chosen_loggers
from showattendtell.progress import EpochReport, GazeReport, build_monitor

QUIET = (
    r"Experiment logs directory .* exists and is not empty",  # Hydra keeps the run's configuration there
    r"Checkpoint directory .* exists and is not empty",
    r"Found \d+ module\(s\) in eval mode",  # the frozen encoder
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches .* is smaller than the logging interval",  # figures are logged per epoch
    r"The '.*_dataloader' does not have many workers",  # grids are read from memory
    r"You're resuming from a checkpoint that ended before the epoch ended",  # CaptionData has the batches that are left
)
"""Warnings of Lightning that are no news here."""


def build_trainer(config: DictConfig, folder: Path) -> tuple[lightning.Trainer, ModelCheckpoint]:
    """A Trainer that keeps `best.ckpt`, `last.ckpt`, a CSV log and its curve in `folder`; and what knows the best value
    of the figure that the run selects by."""
    if config.trainer.get("limit_val_batches") == 0:
        raise UserError("trainer.limit_val_batches=0 leaves nothing to choose the best checkpoint by; take 1 or more")
    if config.trainer.get("devices", 1) not in (1, "1", "auto") or config.trainer.get("num_nodes", 1) != 1:
        raise UserError("training on several devices is not built yet; leave trainer.devices and num_nodes at 1")
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)
    csv, monitor = CSVLogger(folder, name="", version=""), build_monitor(config)
    keep = ModelCheckpoint(
        folder, "best", monitor.metric, mode=monitor.mode, save_last=True, enable_version_counter=False
    )
    stop = build(config.early_stopping, monitor=monitor.metric, mode=monitor.mode)
    callbacks: list[Callback] = [GazeReport(), keep, stop, EpochReport(csv, monitor)]
    console = Console(stderr=True)
    if console.is_terminal:
        callbacks.append(RichProgressBar())
    trainer = build(
        config.trainer,
        default_root_dir=folder,
        logger=[csv, *chosen_loggers(config, folder)],
        callbacks=callbacks,
        enable_progress_bar=console.is_terminal,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    return trainer, keep
