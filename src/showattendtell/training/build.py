"""Build the objects of a training, in the order of the data, and train:

data set -> encoder -> features -> vocabulary -> data module -> captioner -> loss -> LightningModule -> Trainer
"""

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from rich import get_console

from showattendtell.config.entry_point import read_choices
from showattendtell.config.instantiate import build, build_captioner, build_dataset, build_source
from showattendtell.config.schemas import TrainSettings
from showattendtell.config.validation import USER_ERRORS, sentence
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.loading.checkpoints import build_metadata
from showattendtell.loading.models import find_initial_checkpoint, training_vocabulary
from showattendtell.losses.caption import SoftLoss
from showattendtell.losses.self_critical import SelfCriticalLoss
from showattendtell.models.encoder import Encoder
from showattendtell.results.tables import print_dataset, print_notes
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import BEST
from showattendtell.runtime.process import keep_freed_memory
from showattendtell.settings import Node, format_value
from showattendtell.text.vocabulary import Vocabulary, tokenized
from showattendtell.training.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from showattendtell.training.interruption import TERMINATED, report_lost_workers
from showattendtell.training.module import CaptioningModule
from showattendtell.training.progress import MetricsFile, build_monitor
from showattendtell.types import Example

NEEDED = {"barebones": False, "enable_checkpointing": True}
"""Settings of the Trainer without whose value a run has no checkpoints or no logs."""

PARTS = ("encoder", "attention", "decoder", "loss", "decoding", "optimizer", "schedule", "trainer")
"""What a run prints of itself, one line each."""

FEW = 64
"""Images of each split that a training of one batch reads."""

for package in ("pytorch_lightning", "lightning_fabric"):
    logging.getLogger(package).setLevel(logging.WARNING)
logging.getLogger("pytorch_lightning.profilers").setLevel(logging.INFO)  # their reports


def build_training(settings: TrainSettings, record: Mapping[str, Any]) -> tuple[CaptioningModule, CaptionDataModule]:
    """Read the data set, compute or find its features, and build the data module and the model with its losses and
    initial weights.

    Args:
        record: the settings as plain data, for checkpoints.
    """
    build_loss(settings.loss)  # an unsuitable one is refused before data are read
    dataset, encoder = build_dataset(settings.dataset), build(settings.encoder)
    print_notes(dataset.notes)  # before features are computed
    dataset = dataset._replace(notes=())
    if settings.trainer.arguments.get("fast_dev_run"):  # one batch of each split, whose grids are computed in seconds
        dataset = dataset.first(FEW)
    origin = find_initial_checkpoint(settings)
    if origin:
        origin.load_encoder(encoder)
    source, dataset = build_source(settings, dataset, encoder)
    vocabulary = training_vocabulary(settings, origin, dataset)
    dataset = tokenized(dataset, vocabulary.tokenizer)
    references = dataset.split("train")
    dataset = build(settings.distillation, dataset=dataset, tokenizer=vocabulary.tokenizer)
    print_dataset(dataset, vocabulary)
    for part in PARTS:
        print(f"{part}: {getattr(settings, part)}")
    print(f"callbacks: {', '.join(name for name, callback in settings.callbacks.items() if callback)}")
    data = build(settings.data, dataset=dataset, vocabulary=vocabulary, source=source, seed=settings.seed)
    metadata = build_metadata(record, read_choices(), vocabulary, encoder, dataset)
    if origin:
        metadata |= origin.confidence_entry(encoder)
    module = build_module(settings, encoder, vocabulary, metadata, references)
    if origin:
        origin.load_captioner(module.captioner, vocabulary)
    return module, data


def build_loss(node: Node) -> SoftLoss:
    """Build the loss; raise `UserError` if it is of another base class than training calls."""
    loss = build(node)
    if not isinstance(loss, SoftLoss):
        raise UserError(
            f"loss._target_={node.target} is no subclass of showattendtell.losses.caption.SoftLoss, whose `forward` "
            "gets the captioner, regions and captions; docs/extending.md has an example"
        )
    return loss


def build_module(
    settings: TrainSettings,
    encoder: Encoder,
    vocabulary: Vocabulary,
    metadata: dict[str, Any],
    examples: Sequence[Example] = (),
) -> CaptioningModule:
    """Build the model of a training, with fresh weights.

    Args:
        metadata: the entries of its checkpoints.
        examples: training images, whose captions give the document frequencies of the reward.
    """
    captioner = build_captioner(
        settings.attention, settings.decoder, encoder.region_dim, len(vocabulary), settings.weight_init
    )
    reward, self_critical = build(settings.reward), None
    if reward.cider or reward.bleu4:
        if captioner.attention.inference_mode == "argmax":
            raise UserError(
                "attention.inference_mode=argmax samples no regions for a reward to train; set it to sample or "
                "expectation"
            )
        references = [[caption.words for caption in example.captions] for example in examples]
        self_critical = SelfCriticalLoss(reward, vocabulary, references)
    return CaptioningModule(
        encoder=encoder,
        captioner=captioner,
        vocabulary=vocabulary,
        loss=build_loss(settings.loss),
        decoding=build(settings.decoding),
        optimizer=lambda groups: build(settings.optimizer, params=groups),
        schedule=build(settings.schedule),
        metadata=metadata,
        self_critical=self_critical,
    )


def choose_precision(given: Mapping[str, Any]) -> str:
    """Return the precision of a Trainer with these settings: by default bf16-mixed on a GPU that multiplies bfloat16
    numbers, else 32-true.

    Raises:
        UserError: for settings of Lightning's Trainer that this project cannot train with.
    """
    if given.get("overfit_batches"):
        raise UserError("trainer.overfit_batches: each epoch draws other batches; debug=overfit trains on one batch")
    for name in ("log_every_n_steps", "val_check_interval", "check_val_every_n_epoch"):
        if given.get(name) == 0:  # the callbacks and Lightning divide by it
            raise UserError(f"trainer.{name}=0 is not an interval; set it to 1 or more")
    for name, needed in NEEDED.items():
        if given.get(name, needed) != needed:
            raise UserError(
                f"trainer.{name}={format_value(given[name])}: a run writes checkpoints and logs; leave it out"
            )
    precision = given.get("precision")
    if str(precision) in ("bf16-true", "16-true", "64-true", "64"):
        raise UserError(f"trainer.precision={precision}: weights are in float32; set 32-true, bf16-mixed or 16-mixed")
    may_use_gpu = given.get("accelerator", "auto") in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    has_bfloat16 = may_use_gpu and torch.cuda.get_device_capability() >= (8, 0)
    return precision or ("bf16-mixed" if has_bfloat16 else "32-true")


@contextmanager
def report_refusals(setting: str) -> Iterator[None]:
    """Convert Lightning's errors about this setting to `UserError`."""
    try:
        yield
    except (MisconfigurationException, ValueError) as error:
        raise UserError(f"{setting}: {first_line(error)}") from None


def build_trainer(settings: TrainSettings, folder: Path) -> tuple[Trainer, BestCheckpoint]:
    """Build a Trainer that writes `best.ckpt`, `last.ckpt`, a CSV log and its curve to `folder`. Also return the
    callback that tracks the best value of the selection metric."""
    precision = choose_precision(settings.trainer.arguments)
    limit = settings.trainer.arguments.get("limit_val_batches", 1.0)
    if limit and (isinstance(limit, int) or limit < 1):
        print(
            f"note: trainer.limit_val_batches={limit}: validation scores, and so best.ckpt, are of part of the images"
        )
    _, metric, mode = build_monitor(settings.monitor, settings.brevity_penalty)
    best = BestCheckpoint(
        folder, Path(BEST).stem, metric, mode=mode, save_on_train_epoch_end=False, enable_version_counter=False
    )
    last = LastCheckpoint(folder, settings.checkpoint_interval_minutes)
    is_terminal = get_console().is_terminal
    callbacks: list[Callback] = []
    supplied = {"early_stopping": {"monitor": metric, "mode": mode, "check_on_train_epoch_end": False}}
    for name, node in settings.callbacks.items():
        if node and (is_terminal or name != "progress_bar"):
            with report_refusals(f"callbacks.{name}"):
                callbacks.append(build(node, **supplied.get(name, {})))
    with report_refusals("trainer"):
        trainer = build(
            settings.trainer,
            precision=precision,
            default_root_dir=folder,
            logger=[MetricsFile(folder)],
            callbacks=[*callbacks, last, best],
            plugins=[AtomicCheckpointIO(), LightningEnvironment()],  # it trusts no variables of SLURM and others
            enable_progress_bar=is_terminal,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
    return trainer, best


def fit(trainer: Trainer, module: CaptioningModule, data: CaptionDataModule, checkpoint: Path | None) -> None:
    """Train, from the checkpoint if there is one; a SIGTERM before the first step is handled like a later one.

    Each process draws its own random numbers from here on.
    """
    keep_freed_memory()
    device, workers = trainer.strategy.root_device, data.num_workers
    if device.type == "cuda" and rank() == 0:
        other = "" if trainer.precision == "32-true" else "; trainer.precision=32-true computes in float32"
        print(f"training on {torch.cuda.get_device_name(device)} in {trainer.precision}{other}")
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
    except Exception as error:
        if refusing := _find_callback(error):
            raise UserError(f"callbacks: {type(refusing).__name__}: {first_line(error)}") from error
        if checkpoint and last.num_batches < 2:
            raise UserError(
                f"{checkpoint} cannot be resumed ({sentence(error)}): it was altered, or a package changed since "
                "it was written; --debug shows the traceback, and training without resume starts again"
            ) from error
        is_refused = isinstance(error, ValueError) and not last.num_batches  # Lightning refuses settings before a step
        if is_refused or isinstance(error, MisconfigurationException):
            raise UserError(f"trainer: {first_line(error)}") from None
        raise


def _find_callback(error: Exception) -> Callback | None:
    """Return the callback of Lightning that raised an error, such as one about a metric that is not logged."""
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    callbacks = [owner for owner in owners if isinstance(owner, Callback)]
    is_of_lightning = callbacks and type(callbacks[-1]).__module__.startswith("pytorch_lightning.")
    return callbacks[-1] if is_of_lightning else None
