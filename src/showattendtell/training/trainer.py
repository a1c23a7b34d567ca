"""Build the Lightning module and the Trainer: logging, checkpoints and stopping."""

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
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from rich.console import Console

from showattendtell.config.instantiate import build, build_captioner
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.inference.checkpoints import CARD
from showattendtell.losses.self_critical import Reward, SelfCriticalLoss
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import BEST
from showattendtell.training.callbacks.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from showattendtell.training.callbacks.dashboards import DashboardCallback
from showattendtell.training.callbacks.interruption import (
    TERMINATED,
    SignalHandler,
    WorkerShutdown,
    report_lost_workers,
)
from showattendtell.training.callbacks.progress import (
    EpochReport,
    EpochTimes,
    MonitoredMetrics,
    TrainingFigures,
    build_monitor,
)
from showattendtell.training.callbacks.trial import trial_callbacks
from showattendtell.training.loggers.build import MetricsFile, chosen_loggers
from showattendtell.training.module import CaptioningModule
from showattendtell.types import Example

QUIET = (
    r"Checkpoint directory .* exists and is not empty",
    r"Found \d+ module\(s\) in eval mode",  # the frozen encoder
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches .* is smaller than the logging interval",  # metrics are logged per epoch
    r"The '.*_dataloader' does not have many workers",  # grids are read from memory
    r"It is recommended to use `self.log\(.*sync_dist=True\)`",  # every process logs values that all processes share
    r"You're resuming from a checkpoint that ended before the epoch ended",  # handled by CaptionDataModule
)
"""Known-harmless warnings of Lightning."""


def silence_warnings() -> None:
    """Silence known-harmless Lightning warnings."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)


def build_module(
    config: DictConfig, encoder: Encoder, vocabulary: Vocabulary, card: dict[str, Any], examples: Sequence[Example] = ()
) -> CaptioningModule:
    """Build the model of a training configuration, with fresh weights.

    Args:
        examples: training examples, whose captions give the document frequencies of the reward.
    """
    captioner, loss = build_captioner(config, encoder.region_dim, len(vocabulary)), build(config.loss)
    if captioner.attention.stochastic != loss.stochastic:
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
        encoder=encoder,
        captioner=captioner,
        vocabulary=vocabulary,
        loss=loss,
        decoding=build(config.decoding),
        optimizer=lambda groups: build(config.optimizer, params=groups),
        schedule=build(config.schedule),
        metadata=card,
        self_critical=self_critical,
    )


def build_self_critical(
    config: DictConfig, captioner: Captioner, vocabulary: Vocabulary, examples: Sequence[Example]
) -> SelfCriticalLoss | None:
    """Build the loss that rewards the model's captions of the examples, if the configuration has a reward.

    Raises `UserError` for hard attention that does not sample during generation, and so cannot learn from it.
    """
    reward: Reward = build(config.reward)
    if not reward.is_given:
        return None
    if captioner.attention.inference_mode == "argmax":
        raise UserError(
            "attention.inference_mode=argmax draws nothing that a reward could teach; take sample or expectation"
        )
    people = [[caption.words for caption in example.captions] for example in examples]
    return SelfCriticalLoss(reward, vocabulary, people)


def validate_combination(settings: DictConfig) -> None:
    """Raise `UserError` for settings of Lightning's Trainer that this project cannot train with."""
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
    """Build a Trainer that writes `best.ckpt`, `last.ckpt`, a CSV log and its curve to `folder`. Also return the
    callback that tracks the best value of the selection metric."""
    validate_combination(config.trainer)
    csv, monitor, dashboards = MetricsFile(folder), build_monitor(config), chosen_loggers(config, folder)
    best = BestCheckpoint(folder, Path(BEST).stem, monitor.metric, mode=monitor.mode, enable_version_counter=False)
    console = Console(stderr=True)
    callbacks: list[Callback] = [
        TrainingFigures(),
        *build_callbacks(config, folder, monitor, console.is_terminal),
        WorkerShutdown(),
        *trial_callbacks(monitor),
        EpochTimes(folder),
        EpochReport(csv, monitor),
        DashboardCallback(dashboards, csv, best),
        LastCheckpoint(folder, config.checkpoint_interval_minutes, SignalHandler()),
        best,
    ]
    with report_refusals("trainer"):
        trainer = build(
            config.trainer,
            default_root_dir=folder,
            logger=[csv, *dashboards],
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO()],
            enable_progress_bar=console.is_terminal,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
    return trainer, best


def build_callbacks(config: DictConfig, folder: Path, monitor: MonitoredMetrics, is_terminal: bool) -> list[Callback]:
    """Return the callbacks of the group `callbacks`; a progress bar only on a terminal."""
    callbacks = []
    for name, callback in {str(name): callback for name, callback in config.callbacks.items() if callback}.items():
        with report_refusals(f"callbacks.{name}"):
            if name == "early_stopping":
                callbacks.append(build(config.callbacks.early_stopping, monitor=monitor.metric, mode=monitor.mode))
            elif name == "finite_loss":
                callbacks.append(build(config.callbacks.finite_loss, folder=folder))
            elif is_terminal or name != "progress_bar":
                callbacks.append(build(callback))
    return callbacks


@contextmanager
def report_refusals(setting: str) -> Iterator[None]:
    """Convert Lightning's errors about this setting to `UserError`."""
    try:
        yield
    except (MisconfigurationException, ValueError) as fault:
        raise UserError(f"{setting}: {first_line(fault)}") from None


def fit(trainer: lightning.Trainer, module: CaptioningModule, data: CaptionDataModule, checkpoint: Path | None) -> None:
    """Train, from the checkpoint if there is one; a SIGTERM before the first step is handled like a later one.

    Each process draws its own random numbers from here on.
    """
    if rank():
        lightning.seed_everything(int(torch.randint(2**31, (rank(),))[-1]), verbose=False)
    begun = TrainingStarted()
    trainer.callbacks.append(begun)  # type: ignore[attr-defined]
    try:
        with report_lost_workers():
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        sys.exit(TERMINATED)
    except (MisconfigurationException, ValueError) as fault:
        if begun and isinstance(fault, ValueError):
            raise
        raise UserError(f"trainer: {first_line(fault)}") from None


class TrainingStarted(Callback):
    """Records whether training reached its first step: Lightning raises configuration errors before it."""

    def __init__(self) -> None:
        self._has_begun = False

    def on_train_start(self, *_: Any) -> None:
        self._has_begun = True

    def __bool__(self) -> bool:
        return self._has_begun
