"""What Lightning trains, and its Trainer: what it logs, what it keeps, when it stops."""

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from rich.console import Console

from showattendtell.batches import CaptionData
from showattendtell.checkpoint import CARD
from showattendtell.config.build import build, build_captioner
from showattendtell.dashboards import Dashboards
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.files import BEST
from showattendtell.keeping import BestCheckpoint, LastCheckpoint, WholeCheckpoints
from showattendtell.loggers import MetricsFile, chosen_loggers
from showattendtell.loss import HardLoss
from showattendtell.model.captioner import Captioner
from showattendtell.model.hard import HardAttention
from showattendtell.module import CaptioningModule
from showattendtell.processes import rank
from showattendtell.progress import EpochReport, EpochTimes, GazeReport, TrainingFigures, build_monitor
from showattendtell.records import Example
from showattendtell.self_critical import Reward, SelfCritical
from showattendtell.stopping import TERMINATED, FiniteLoss, Notice, WorkersEnd, telling_lost_workers
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.trials import trial_callbacks

QUIET = (
    r"Checkpoint directory .* exists and is not empty",
    r"Found \d+ module\(s\) in eval mode",  # the frozen encoder
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches .* is smaller than the logging interval",  # figures are logged per epoch
    r"The '.*_dataloader' does not have many workers",  # grids are read from memory
    r"It is recommended to use `self.log\(.*sync_dist=True\)`",  # every process logs what all have
    r"You're resuming from a checkpoint that ended before the epoch ended",  # CaptionData has the batches that are left
)
"""Warnings of Lightning that are no news here."""


def quieten() -> None:
    """Let Lightning tell what is news."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)


def build_module(
    config: DictConfig, encoder: Encoder, vocabulary: Vocabulary, card: dict[str, Any], examples: Sequence[Example] = ()
) -> CaptioningModule:
    """The model that a training configuration describes, with fresh weights.

    Args:
        examples: those of the training split, whose captions rewards are counted by.
    """
    captioner, loss = build_captioner(config, encoder.region_dim, len(vocabulary)), build(config.loss)
    if isinstance(captioner.attention, HardAttention) != isinstance(loss, HardLoss):
        raise UserError("attention=hard learns by loss=hard, and no other attention does; leave loss=... out")
    words_dropped = getattr(captioner.decoder, "word_dropout", None)
    if getattr(captioner.attention, "estimator", None) == "exact" and words_dropped and words_dropped.p:
        raise UserError(
            "attention.estimator=exact tries regions behind the same words; leave words out of decoder.dropout_places"
        )
    self_critical = build_self_critical(config, captioner, vocabulary, examples)
    if self_critical:
        card[CARD]["rewards"] = self_critical.judge.describe()
    return CaptioningModule(
        encoder,
        captioner,
        vocabulary,
        loss=loss,
        decoding=build(config.decoding),
        optimizer=lambda groups: build(config.optimizer, params=groups),
        schedule=build(config.schedule),
        card=card,
        self_critical=self_critical,
    )


def build_self_critical(
    config: DictConfig, captioner: Captioner, vocabulary: Vocabulary, examples: Sequence[Example]
) -> SelfCritical | None:
    """What rewards captions that the model writes for the examples, if the configuration has a reward.

    Raises `UserError` for hard attention that draws nothing where captions are written, and so cannot learn from it.
    """
    reward: Reward = build(config.reward)
    if not reward.is_given:
        return None
    if getattr(captioner.attention, "test", None) == "argmax":
        raise UserError("attention.test=argmax draws nothing that a reward could teach; take sample or expectation")
    people = [[caption.words for caption in example.captions] for example in examples]
    return SelfCritical(reward, vocabulary, people)


def refuse(settings: DictConfig) -> None:
    """Raises `UserError` for settings of Lightning's Trainer with which nothing could be trained here."""
    if settings.get("limit_val_batches") == 0:
        raise UserError("trainer.limit_val_batches=0 leaves nothing to choose the best checkpoint by; take 1 or more")
    if settings.get("overfit_batches"):
        raise UserError("trainer.overfit_batches: each epoch draws its batches anew; take trainer.limit_train_batches")
    if settings.get("log_every_n_steps") == 0:
        raise UserError("trainer.log_every_n_steps=0 is no number of steps; take 1 or more")
    if str(precision := settings.get("precision")) in ("bf16-true", "16-true", "64-true"):
        raise UserError(
            f"trainer.precision={precision}: sums and weights are in float32 here; take 32-true, bf16-mixed or 16-mixed"
        )


def build_trainer(config: DictConfig, folder: Path) -> tuple[lightning.Trainer, ModelCheckpoint]:
    """A Trainer that keeps `best.ckpt`, `last.ckpt`, a CSV log and its curve in `folder`; and what knows the best value
    of the figure that the run selects by."""
    refuse(config.trainer)
    csv, monitor, dashboards = MetricsFile(folder), build_monitor(config), chosen_loggers(config, folder)
    best = BestCheckpoint(folder, Path(BEST).stem, monitor.metric, mode=monitor.mode, enable_version_counter=False)
    with telling_refusals(config.early_stopping):
        stop = build(config.early_stopping, monitor=monitor.metric, mode=monitor.mode)
    callbacks: list[Callback] = [
        GazeReport(),
        TrainingFigures(),
        FiniteLoss(folder),
        WorkersEnd(),
        stop,
        *trial_callbacks(monitor),
        EpochTimes(folder),
        EpochReport(csv, monitor),
        Dashboards(dashboards, csv, best),
        LastCheckpoint(folder, config.checkpoint_every, Notice()),
        best,
    ]
    console = Console(stderr=True)
    if console.is_terminal:
        callbacks.append(RichProgressBar())
    with telling_refusals(config.trainer):
        trainer = build(
            config.trainer,
            default_root_dir=folder,
            logger=[csv, *dashboards],
            callbacks=callbacks,
            plugins=[WholeCheckpoints()],
            enable_progress_bar=console.is_terminal,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
    return trainer, best


@contextmanager
def telling_refusals(node: DictConfig) -> Iterator[None]:
    """What Lightning refuses in its own way, as a `UserError`."""
    try:
        yield
    except (MisconfigurationException, ValueError) as fault:
        raise UserError(f"{node._get_full_key('')}: {first_line(fault)}") from None


def fit(trainer: lightning.Trainer, module: CaptioningModule, data: CaptionData, checkpoint: Path | None) -> None:
    """Train, from the checkpoint on if there is one; a SIGTERM before the first step ends it as a later one does.

    Each process draws random numbers of its own from here on.
    """
    if rank():
        lightning.seed_everything(int(torch.randint(2**31, (rank(),))[-1]), verbose=False)
    begun = Begun()
    trainer.callbacks.append(begun)  # type: ignore[attr-defined]
    try:
        with telling_lost_workers():
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        sys.exit(TERMINATED)
    except (MisconfigurationException, ValueError) as fault:
        if begun and isinstance(fault, ValueError):
            raise
        raise UserError(f"trainer: {first_line(fault)}") from None


class Begun(Callback):
    """Whether training has come to its first step: what Lightning refuses, it refuses before."""

    def __init__(self) -> None:
        self._has_begun = False

    def on_train_start(self, *_: Any) -> None:
        self._has_begun = True

    def __bool__(self) -> bool:
        return self._has_begun


def first_line(fault: Exception) -> str:
    return str(fault).strip().splitlines()[0]
