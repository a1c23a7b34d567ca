"""What Lightning trains, and its Trainer: what it logs, what it keeps, when it stops."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from rich.console import Console

from showattendtell.config.build import build, build_captioner
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.loggers import chosen_loggers
from showattendtell.loss import HardLoss
from showattendtell.model.hard import HardAttention
from showattendtell.module import CaptioningModule
from showattendtell.progress import EpochReport, GazeReport, build_monitor
from showattendtell.text.vocabulary import Vocabulary

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


def build_module(
    config: DictConfig, encoder: Encoder, vocabulary: Vocabulary, card: dict[str, Any]
) -> CaptioningModule:
    """The model that a training configuration describes, with fresh weights."""
    captioner, loss = build_captioner(config, encoder.region_dim, len(vocabulary)), build(config.loss)
    if isinstance(captioner.attention, HardAttention) != isinstance(loss, HardLoss):
        raise UserError("attention=hard learns by loss=hard, and no other attention does; leave loss=... out")
    return CaptioningModule(
        encoder,
        captioner,
        vocabulary,
        loss=loss,
        decoding=build(config.decoding),
        optimizer=lambda groups: build(config.optimizer, params=groups),
        schedule=build(config.schedule),
        card=card,
    )


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
    with _telling_refusals(config.early_stopping):
        stop = build(config.early_stopping, monitor=monitor.metric, mode=monitor.mode)
    callbacks: list[Callback] = [GazeReport(), keep, stop, EpochReport(csv, monitor)]
    console = Console(stderr=True)
    if console.is_terminal:
        callbacks.append(RichProgressBar())
    with _telling_refusals(config.trainer):
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


@contextmanager
def _telling_refusals(node: DictConfig) -> Iterator[None]:
    """What Lightning refuses in its own way, as a `UserError`."""
    try:
        yield
    except MisconfigurationException as fault:
        raise UserError(f"{node._get_full_key('')}: {str(fault).strip().splitlines()[0]}") from None
