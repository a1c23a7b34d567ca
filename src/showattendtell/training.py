"""The Lightning Trainer of a run: what it logs, what it keeps, when it stops."""

import logging
import sys
import warnings
from pathlib import Path

import pytorch_lightning as lightning
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.utilities.exceptions import SIGTERMException
from rich.console import Console

from showattendtell.batches import CaptionData
from showattendtell.checkpoint import BEST, WholeCheckpoints
from showattendtell.config.build import build
from showattendtell.errors import UserError
from showattendtell.keeping import BestCheckpoint, LastCheckpoint
from showattendtell.loggers import MetricsFile, chosen_loggers
from showattendtell.module import CaptioningModule
from showattendtell.progress import EpochReport, GazeReport, TrainingFigures, build_monitor
from showattendtell.stopping import TERMINATED, FiniteLoss, Notice

QUIET = (
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
    csv, monitor = MetricsFile(folder), build_monitor(config)
    best = BestCheckpoint(folder, Path(BEST).stem, monitor.metric, mode=monitor.mode, enable_version_counter=False)
    callbacks: list[Callback] = [
        GazeReport(),
        TrainingFigures(),
        FiniteLoss(folder),
        build(config.early_stopping, monitor=monitor.metric, mode=monitor.mode),
        EpochReport(csv, monitor),
        LastCheckpoint(folder, config.checkpoint_every, Notice()),
        best,
    ]
    console = Console(stderr=True)
    if console.is_terminal:
        callbacks.append(RichProgressBar())
    trainer = build(
        config.trainer,
        default_root_dir=folder,
        logger=[csv, *chosen_loggers(config, folder)],
        callbacks=callbacks,
        plugins=[WholeCheckpoints()],
        enable_progress_bar=console.is_terminal,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    return trainer, best


def fit(trainer: lightning.Trainer, module: CaptioningModule, data: CaptionData, checkpoint: Path | None) -> None:
    """Train, from the checkpoint on if there is one; a SIGTERM before the first step ends it as a later one does."""
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        sys.exit(TERMINATED)
