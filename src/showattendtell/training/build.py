"""Build the objects of a training, in the order of the data:

    data set -> encoder -> features -> vocabulary -> data module -> captioner -> loss -> LightningModule -> Trainer

Nodes of the configuration that are not listed in `PARTS` belong to extensions (`training.extras`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from rich import get_console

from showattendtell.config.compose import plain_settings
from showattendtell.config.entry_point import read_choices
from showattendtell.config.instantiate import build, build_captioner, build_dataset, build_source
from showattendtell.config.validation import TARGET, USER_ERRORS, with_defaults
from showattendtell.data.languages import tokenized
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.inference.checkpoints import METADATA_KEY, build_metadata
from showattendtell.inference.initial import (
    InitialCheckpoint,
    find_initial_checkpoint,
    initial_vocabulary,
    load_word_vectors,
)
from showattendtell.losses.self_critical import SelfCriticalLoss
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.files import BEST
from showattendtell.training.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from showattendtell.training.extras import TrainingExtra
from showattendtell.training.interruption import SignalHandler
from showattendtell.training.module import CaptioningModule
from showattendtell.training.progress import MetricsFile, build_monitor
from showattendtell.training.trainer import (
    cluster_environment,
    default_precision,
    report_refusals,
    validate_combination,
)
from showattendtell.types import Dataset, Example
from showattendtell.visualization.tables import print_dataset, print_notes

PARTS = {"dataset", "encoder", "augment", "features", "tokenizer", "vocabulary", "data", "attention", "decoder"}
PARTS |= {"loss", "reward", "decoding", "optimizer", "schedule", "trainer", "callbacks", "logger"}


FEW = 64
"""Images of each split that a training of one batch reads."""


class TrainingData(NamedTuple):
    """What a training reads.

    dataset     as it is trained on
    references  the training images with their reference captions
    origin      the checkpoint that the weights start from, if any
    extras      of extensions, by the name of their node
    """

    dataset: Dataset
    references: Sequence[Example]
    encoder: Encoder
    vocabulary: Vocabulary
    module: CaptionDataModule
    origin: InitialCheckpoint | None
    extras: Mapping[str, TrainingExtra]


def build_extras(config: DictConfig) -> dict[str, TrainingExtra]:
    """Build the nodes of extensions."""
    nodes = {str(name): node for name, node in config.items() if name not in PARTS and isinstance(node, DictConfig)}
    return {name: build(node) for name, node in nodes.items() if TARGET in node}


def build_data(config: DictConfig) -> TrainingData:
    """Read the data set, compute or find its features, and build the data module."""
    dataset, encoder = build_dataset(config), build(config.encoder)
    print_notes(dataset.notes)  # before features are computed
    num_printed = len(dataset.notes)
    if config.trainer.get("fast_dev_run"):  # one batch of each split, whose grids are computed in seconds
        dataset = dataset.first(FEW)
    origin = find_initial_checkpoint(config)
    if origin:
        origin.load_encoder(encoder)
    source, dataset = build_source(config, dataset, encoder)
    vocabulary = initial_vocabulary(config, dataset, origin)
    dataset = tokenized(dataset, vocabulary.tokenizer)
    references, extras = dataset.split("train"), build_extras(config)
    for extra in extras.values():
        dataset = extra.change_data(dataset, vocabulary.tokenizer)
    print_dataset(dataset._replace(notes=dataset.notes[num_printed:]), vocabulary)
    data = build(config.data, dataset=dataset, vocabulary=vocabulary, source=source, seed=config.seed)
    return TrainingData(dataset, references, encoder, vocabulary, data, origin, extras)


def build_model(config: DictConfig, data: TrainingData) -> CaptioningModule:
    """Build the model and its losses, with the initial weights that the configuration asks for."""
    metadata = build_metadata(config, read_choices(), data.vocabulary, data.encoder, data.dataset)
    module = build_module(config, data.encoder, data.vocabulary, metadata, data.references, data.extras)
    decoder = module.captioner.decoder
    if data.origin:
        data.origin.load_captioner(module.captioner, data.vocabulary)
    elif config.init_embeddings:
        number = load_word_vectors(decoder, data.vocabulary, config.init_embeddings)
        print(f"word vectors: {number:,} of {len(data.vocabulary):,} words have one in {config.init_embeddings}")
    decoder.embedding.requires_grad_(not config.freeze_embeddings)
    return module


def build_module(
    config: DictConfig,
    encoder: Encoder,
    vocabulary: Vocabulary,
    metadata: dict[str, Any],
    examples: Sequence[Example] = (),
    extras: Mapping[str, TrainingExtra] | None = None,
) -> CaptioningModule:
    """Build the model of a training configuration, with fresh weights.

    Args:
        metadata: the entries of its checkpoints; those of rewards and extensions are added.
        examples: training images, whose captions give the document frequencies of the reward.
    """
    captioner = build_captioner(config, encoder.region_dim, len(vocabulary), encoder.padded)
    module = CaptioningModule(
        encoder=encoder,
        captioner=captioner,
        vocabulary=vocabulary,
        loss=build(config.loss),
        decoding=build(config.decoding),
        optimizer=lambda groups: build(config.optimizer, params=groups),
        schedule=build(config.schedule),
        metadata=metadata,
        self_critical=_build_rewards(config, captioner.attention.inference_mode, vocabulary, examples),
    )
    for name, extra in (extras or {}).items():
        for key, value in extra.change_module(module, config).items():
            metadata[METADATA_KEY].setdefault("extras", {})[f"{name}.{key}"] = value
    return module


def _build_rewards(
    config: DictConfig, inference_mode: str, vocabulary: Vocabulary, examples: Sequence[Example]
) -> SelfCriticalLoss | None:
    """Build the loss that rewards sampled captions, if there are rewards."""
    reward = build(config.reward)
    if not (reward.cider or reward.bleu4):
        return None
    if inference_mode == "argmax":
        raise UserError(
            "attention.inference_mode=argmax samples no regions for a reward to train; set it to sample or expectation"
        )
    references = [[vocabulary.with_language(caption) for caption in example.captions] for example in examples]
    return SelfCriticalLoss(reward, vocabulary, references)


def build_logger(config: DictConfig, name: str) -> Logger:
    """Build a logger, by any class of Lightning's kind, and log the settings of the run.

    Raises:
        UserError: its package is missing, or its server cannot be reached.
    """
    try:
        logger = build(config.logger[name])
        logger.log_hyperparams(with_defaults(plain_settings(config)))
    except USER_ERRORS:
        raise
    except Exception as error:  # each has its own errors
        raise UserError(f"logger.{name}: {first_line(error)}; --debug shows the traceback") from error
    return logger


def build_trainer(config: DictConfig, folder: Path) -> tuple[Trainer, BestCheckpoint]:
    """Build a Trainer that writes `best.ckpt`, `last.ckpt`, a CSV log and its curve to `folder`. Also return the
    callback that tracks the best value of the selection metric."""
    validate_combination(config.trainer)
    _, metric, mode = build_monitor(config.monitor, config.brevity_penalty)
    best = BestCheckpoint(
        folder, Path(BEST).stem, metric, mode=mode, save_on_train_epoch_end=False, enable_version_counter=False
    )
    last = LastCheckpoint(folder, config.checkpoint_interval_minutes, SignalHandler())
    is_terminal = get_console().is_terminal
    callbacks: list[Callback] = []
    for name, callback in config.callbacks.items():
        with report_refusals(f"callbacks.{name}"):
            if callback and name == "early_stopping":
                stopping = build(callback, monitor=metric, mode=mode, check_on_train_epoch_end=False)
                callbacks.append(stopping)
            elif callback and (is_terminal or name != "progress_bar"):
                callbacks.append(build(callback))
    loggers = [build_logger(config, name) for name, node in (config.get("logger") or {}).items() if node]
    with report_refusals("trainer"):
        trainer = build(
            config.trainer,
            precision=config.trainer.get("precision") or default_precision(config.trainer.get("accelerator", "auto")),
            default_root_dir=folder,
            logger=[MetricsFile(folder), *loggers],
            callbacks=[*callbacks, last, best],
            plugins=[AtomicCheckpointIO(), *cluster_environment()],
            enable_progress_bar=is_terminal,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
    return trainer, best
