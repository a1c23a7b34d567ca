"""Run Lightning's Trainer: its settings, its warnings and its errors."""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.environments import ClusterEnvironment, LightningEnvironment
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException

from showattendtell.config.validation import USER_ERRORS, sentence
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.models.kernels.products import MATMUL, library
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.launched import is_launched
from showattendtell.runtime.memory import keep_freed_memory
from showattendtell.training.checkpointing import LastCheckpoint
from showattendtell.training.interruption import TERMINATED, report_lost_workers
from showattendtell.training.module import CaptioningModule

QUIET = (
    r"Checkpoint directory .* exists and is not empty",
    r"Found \d+ module\(s\) in eval mode",  # the frozen encoder
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches .* is smaller than the logging interval",  # metrics are logged per epoch
    r"The '.*_dataloader' does not have many workers",  # grids are read from memory
    r"It is recommended to use `self.log\(.*sync_dist=True\)`",  # every process logs values that all processes share
    r"You're resuming from a checkpoint that ended before the epoch ended",  # handled by CaptionDataModule
    r"The ``compute`` method of metric \w+ was called before",  # a process without captions; others have some
)


def silence_warnings() -> None:
    """Silence messages and known-harmless warnings of Lightning and torchmetrics, except reports of profilers."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    logging.getLogger("pytorch_lightning.profilers").setLevel(logging.INFO)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)


def validate_combination(settings: Mapping[str, Any]) -> None:
    """Raise `UserError` for settings of Lightning's Trainer that this project cannot train with."""
    if settings.get("overfit_batches"):
        raise UserError("trainer.overfit_batches: each epoch draws other batches; debug=overfit trains on one batch")
    for name in ("log_every_n_steps", "val_check_interval", "check_val_every_n_epoch"):
        if settings.get(name) == 0:  # Lightning divides by it
            raise UserError(f"trainer.{name}=0 is not an interval; set it to 1 or more")
    precision = settings.get("precision")
    if precision in ("bf16-true", "16-true", "64-true"):
        raise UserError(f"trainer.precision={precision}: weights are in float32; set 32-true, bf16-mixed or 16-mixed")


def default_precision(accelerator: str) -> str:
    """Return bf16-mixed on a GPU that multiplies bfloat16 numbers, and else 32-true."""
    may_use_gpu = accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return "bf16-mixed" if may_use_gpu and torch.cuda.get_device_capability() >= (8, 0) else "32-true"


def cluster_environment() -> list[ClusterEnvironment]:
    """Return the plugin that keeps Lightning from waiting for processes of SLURM and others that it believes in."""
    return [] if is_launched() else [LightningEnvironment()]


@contextmanager
def report_refusals(setting: str) -> Iterator[None]:
    """Convert Lightning's errors about this setting to `UserError`."""
    try:
        yield
    except (MisconfigurationException, ValueError) as error:
        raise UserError(f"{setting}: {first_line(error)}") from None


def fit(trainer: Trainer, module: CaptioningModule, data: CaptionDataModule, checkpoint: Path | None) -> None:
    """Train, from the checkpoint if there is one; a SIGTERM before the first step is handled like a later one.

    Each process draws its own random numbers from here on.
    """
    keep_freed_memory()
    device, workers = trainer.strategy.root_device, data.num_workers
    if device.type == "cuda" and rank() == 0:
        other = "" if trainer.precision == "32-true" else "; trainer.precision=32-true computes in float32"
        print(f"training on {torch.cuda.get_device_name(device)} in {trainer.precision}{other}")
    if device.type == "cpu" and library() == "onednn":
        print(f"float32 matrix products: oneDNN, which is faster here ({MATMUL}=torch for torch's default)")
    if rank():
        lightning.seed_everything(int(torch.randint(2**31, (rank(),))[-1]), verbose=False)
    [last] = [callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint)]  # type: ignore[attr-defined]
    try:
        with report_lost_workers(device.type == "cuda" if workers is None else workers > 0):
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        sys.exit(TERMINATED)
    except USER_ERRORS:
        raise
    except MisconfigurationException as error:
        raise UserError(f"trainer: {first_line(error)}") from None
    except Exception as error:
        if not last.is_restoring:
            raise
        if checkpoint:
            raise UserError(
                f"{checkpoint} cannot be resumed ({sentence(error)}): it was altered, or a package changed since "
                "it was written; --debug shows the traceback, and training without resume starts again"
            ) from error
        if isinstance(error, ValueError):  # Lightning refuses settings before the first step
            raise UserError(f"trainer: {first_line(error)}") from None
        raise
