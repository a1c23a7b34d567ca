"""Build the Lightning module and the Trainer: logging, checkpoints and stopping."""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.environments import ClusterEnvironment, LightningEnvironment
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from rich import get_console

from showattendtell.config.instantiate import build, build_captioner
from showattendtell.config.validation import USER_ERRORS, sentence
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.inference.checkpoints import METADATA_KEY
from showattendtell.inference.loading import find_model, load_models, weights_file
from showattendtell.losses.distillation import Distillation, DistillationLoss
from showattendtell.losses.self_critical import SelfCriticalLoss
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import BEST, sha256
from showattendtell.runtime.launched import is_launched
from showattendtell.training.callbacks import build_monitor
from showattendtell.training.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from showattendtell.training.cuda_graphs import CUDAGraphs
from showattendtell.training.interruption import TERMINATED, SignalHandler, report_lost_workers
from showattendtell.training.loggers import MetricsFile
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
    r"The ``compute`` method of metric \w+ was called before",  # a process without captions; others have some
)


def silence_warnings() -> None:
    """Silence messages and known-harmless warnings of Lightning and torchmetrics, except reports of profilers."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    logging.getLogger("pytorch_lightning.profilers").setLevel(logging.INFO)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)


def build_module(
    settings: Mapping[str, Any],
    encoder: Encoder,
    vocabulary: Vocabulary,
    metadata: dict[str, Any],
    examples: Sequence[Example] = (),
    distillation: Distillation | None = None,
) -> CaptioningModule:
    """Build the model of a training configuration, with fresh weights.

    Args:
        examples: training images, whose captions give the document frequencies of the reward.
        distillation: names the teachers, if any.
    """
    captioner = build_captioner(settings, encoder.region_dim, len(vocabulary), encoder.padded)
    loss = build(settings["loss"])
    if any(getattr(captioner.attention, option) != getattr(loss, option) for option in ("stochastic", "variational")):
        raise UserError(
            f"{type(captioner.attention).__name__} cannot be trained with {type(loss).__name__}: attention that "
            "samples locations needs HardLoss, variational attention VariationalLoss, other attention SoftLoss; leave "
            "loss._target_ out"
        )
    word_dropout = getattr(captioner.decoder, "word_dropout", None)
    if getattr(captioner.attention, "estimator", None) == "exact" and word_dropout and word_dropout.p:
        raise UserError(
            "attention.estimator=exact evaluates every region with the same words; leave words out of "
            "decoder.dropout_places"
        )
    reward, self_critical = build(settings["reward"]), None
    if (reward.length or reward.repetition) and not reward.is_enabled:
        raise UserError(
            "reward.length and reward.repetition are subtracted from other rewards; set reward.cider or reward.bleu4 "
            "as well"
        )
    if reward.is_enabled:
        if captioner.attention.inference_mode == "argmax":
            raise UserError(
                "attention.inference_mode=argmax samples no regions for a reward to train; set it to sample or "
                "expectation"
            )
        references = [[vocabulary.with_language(caption) for caption in example.captions] for example in examples]
        self_critical = SelfCriticalLoss(reward, vocabulary, references)
        metadata[METADATA_KEY]["rewards"] = self_critical.describe()
    teachers = distillation and _load_teachers(distillation, settings, metadata)
    if teachers is not None and reward.is_enabled and not reward.likelihood:
        raise UserError(
            "distillation.teacher is part of the loss on captions, which reward.likelihood=0 leaves out; set it above "
            "0, or leave distillation.teacher out of this stage"
        )
    return CaptioningModule(
        encoder=encoder,
        captioner=captioner,
        vocabulary=vocabulary,
        loss=loss,
        decoding=build(settings["decoding"]),
        optimizer=lambda groups: build(settings["optimizer"], params=groups),
        schedule=build(settings["schedule"]),
        metadata=metadata,
        self_critical=self_critical,
        distillation=teachers,
    )


def _load_teachers(
    distillation: Distillation, settings: Mapping[str, Any], metadata: dict[str, Any]
) -> DistillationLoss | None:
    """Load the teachers, if there are any, and write hashes of their weights to the metadata."""
    if distillation.teacher is None:
        return None
    paths = [distillation.teacher] if isinstance(distillation.teacher, str) else distillation.teacher
    with torch.random.fork_rng(devices=[]):  # loading draws initial weights, and must not change those of the student
        models = load_models(paths, "cpu", build(settings["decoding"]))
    metadata[METADATA_KEY]["teachers"] = [sha256(weights_file(find_model(path))) for path in paths]
    return DistillationLoss([model.module for model in models], distillation.weight, distillation.temperature)


def validate_combination(settings: Mapping[str, Any]) -> None:
    """Raise `UserError` for settings of Lightning's Trainer that this project cannot train with."""
    if settings.get("overfit_batches"):
        raise UserError(
            "trainer.overfit_batches: each epoch draws other batches; use trainer.limit_train_batches instead"
        )
    if settings.get("log_every_n_steps") == 0:
        raise UserError("trainer.log_every_n_steps=0 is not a number of steps; set it to 1 or more")
    if str(precision := settings.get("precision")) in ("bf16-true", "16-true", "64-true"):
        raise UserError(
            f"trainer.precision={precision}: sums and weights are in float32; set it to 32-true, bf16-mixed or 16-mixed"
        )


def build_trainer(settings: Mapping[str, Any], folder: Path) -> tuple[Trainer, BestCheckpoint]:
    """Build a Trainer that writes `best.ckpt`, `last.ckpt`, a CSV log and its curve to `folder`. Also return the
    callback that tracks the best value of the selection metric."""
    validate_combination(settings["trainer"])
    _, metric, mode = build_monitor(settings["monitor"], settings["brevity_penalty"])
    best = BestCheckpoint(
        folder, Path(BEST).stem, metric, mode=mode, save_on_train_epoch_end=False, enable_version_counter=False
    )
    last = LastCheckpoint(folder, settings["checkpoint_interval_minutes"], SignalHandler())
    is_terminal = get_console().is_terminal
    callbacks: list[Callback] = []
    for name, callback in settings["callbacks"].items():
        with report_refusals(f"callbacks.{name}"):
            if callback and name == "early_stopping":
                callbacks.append(
                    build(
                        settings["callbacks"]["early_stopping"],
                        monitor=metric,
                        mode=mode,
                        check_on_train_epoch_end=False,
                    )
                )
            elif callback and (is_terminal or name != "progress_bar"):
                callbacks.append(build(callback))
    loggers = [build(node) for node in (settings.get("logger") or {}).values() if node]
    with report_refusals("trainer"):
        trainer = build(
            settings["trainer"],
            default_root_dir=folder,
            logger=[MetricsFile(folder), *loggers],
            callbacks=[*callbacks, last, best],
            plugins=[AtomicCheckpointIO(), *cluster_environment()],
            enable_progress_bar=is_terminal,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
    for callback in callbacks:
        if isinstance(callback, CUDAGraphs):
            callback.check_device(trainer)
    return trainer, best


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
    if rank():
        lightning.seed_everything(int(torch.randint(2**31, (rank(),))[-1]), verbose=False)
    [last] = [callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint)]  # type: ignore[attr-defined]
    try:
        with report_lost_workers(data.num_workers):
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        sys.exit(TERMINATED)
    except USER_ERRORS:
        raise
    except Exception as error:
        # Lightning refuses settings before the first step
        if isinstance(error, MisconfigurationException) or (
            not checkpoint and last.is_restoring and isinstance(error, ValueError)
        ):
            raise UserError(f"trainer: {first_line(error)}") from None
        if checkpoint and last.is_restoring:
            raise UserError(
                f"{checkpoint} cannot be resumed ({sentence(error)}): it was altered, or a package changed since "
                "it was written; --debug shows the traceback, and training without resume starts again"
            ) from error
        raise
