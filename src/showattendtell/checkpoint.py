"""Checkpoints that say what they are: written in training, and all that scoring and captioning need."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from showattendtell import __version__
from showattendtell.captioning import ImageCaptioner
from showattendtell.config.build import TRUST, build, build_captioner, foreign_targets, settled
from showattendtell.config.check import find_faults, raise_all
from showattendtell.config.differences import plain_settings
from showattendtell.config.entry import Chosen
from showattendtell.data.images import Preprocessing
from showattendtell.decode.decoding import Decoding
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.files import whole_file
from showattendtell.portable import CONFIG, ENCODER, Portable, find_model, read_portable, write_portable
from showattendtell.pretrained import state_hash
from showattendtell.processes import own_device
from showattendtell.records import Dataset, fingerprint
from showattendtell.text.vocabulary import Vocabulary

FORMAT = 2

CARD = "showattendtell"
"""A checkpoint's entry that says what the weights mean."""


class Restored(NamedTuple):
    """A trained model ready for use, the configuration it was trained with, and what it says of itself."""

    module: ImageCaptioner
    config: DictConfig
    card: dict[str, Any]

    @property
    def choices(self) -> dict[str, str]:
        """The option of each group that was chosen for training."""
        return self.card["choices"]


def write_card(
    config: DictConfig, chosen: Chosen, vocabulary: Vocabulary, encoder: Encoder, dataset: Dataset
) -> dict[str, Any]:
    """What a checkpoint says of itself, in plain numbers, strings, lists and dicts."""
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


def restore(path: str, device: str, decoding: Decoding, attention: DictConfig | None = None) -> Restored:
    """The model in a checkpoint. Nothing in the file is executed.

    Args:
        path: a checkpoint, a folder that `write_portable` made, or a name that `find_model` knows.
        device: `cpu`, `cuda`, or `auto` for the process's own GPU if there is one.
        decoding: how it is to write captions.
        attention: settings of the attention that are to be other than in training, where they are not null.

    Raises `UserError` for a file that is missing, damaged, none of ours, or of another format.
    """
    file = find_model(path)
    card, state = read_checkpoint(file)
    published = not any(name.startswith(ENCODER) for name in state)
    try:
        config = DictConfig(card["config"])
        for target in foreign_targets(card["config"]):
            raise UserError(
                f"{path} asks to run {target}, which is no part of showattendtell; if it is your own, give "
                f"{TRUST}={target.partition('.')[0]} in the environment, else do not trust the file"
            )
        faults = find_faults(config)
        if faults:
            raise UserError(f"the configuration in {path} is not this version's: {faults[0]}")
        config = settled(config, attention=attention)
        raise_all(find_faults(config))
        encoder = build(config.encoder if published else settled(config.encoder, weights="random"))
        encoder.preprocessing = Preprocessing(**card["encoder"]["preprocessing"])
        encoder.tuned = card["encoder"].get("tuned", False)
        vocabulary = Vocabulary(card["vocabulary"])
        captioner = build_captioner(config, encoder.region_dim, len(vocabulary))
    except (KeyError, TypeError, ValueError) as fault:
        raise UserError(f"{path} was altered since it was written ({fault}); train again") from None
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
    return Restored(module.eval().to(_device(device)), config, card)


def _check_encoder(encoder: Encoder, card: Mapping[str, Any], path: str) -> None:
    """Raises `UserError` where the published weights are no longer those that the model was trained on."""
    if state_hash(encoder.network.state_dict()) != card["encoder"]["weights_sha256"]:
        raise UserError(
            f"the weights {encoder.weights} of {encoder.network_name} are not those that {path} was trained on; "
            "install the release of the encoder's package that it was trained with"
        )


def save_portable(restored: Restored, folder: Path) -> None:
    """Write the model as `write_portable` does; the weights of an encoder that was not trained stay where they are
    published."""
    write_portable(folder, restored.card, restored.module.state_dict(), with_encoder=not _is_published(restored))


def _is_published(restored: Restored) -> bool:
    """Whether the encoder's weights are those that its configuration names, and others can have them by that name."""
    if not restored.config.encoder.get("weights", "hub").startswith(("wheel:", "hub")):
        return False
    try:
        named: Encoder = build(restored.config.encoder)
    except UserError:
        return False
    return state_hash(named.network.state_dict()) == state_hash(restored.module.encoder.network.state_dict())


def restore_together(
    paths: Sequence[str], device: str, decoding: Decoding, attention: DictConfig | None = None
) -> list[Restored]:
    """The models in several checkpoints, which are to write as one.

    Raises `UserError` where their vocabularies differ, since they could not agree on a word.
    """
    models = [restore(path, device, decoding, attention) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if model.module.vocabulary.words != models[0].module.vocabulary.words:
            raise UserError(
                f"{path} and {paths[0]} have different vocabularies, and cannot write together; "
                "give checkpoints that were trained on the same captions with the same vocabulary.size"
            )
    return models


def _device(name: str) -> torch.device:
    try:
        device = torch.device(own_device() if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"device={name} is none of this machine; take cpu, cuda, cuda:1, ... or auto") from None
    return device


def find_damage(file: Path) -> str:
    """What is wrong with a checkpoint, by the CRC-32 that torch writes of each of its parts and does not look at again;
    empty where it is whole."""
    try:
        with zipfile.ZipFile(file) as parts:
            broken = parts.testzip()
        if not broken:
            torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as fault:  # neither has one error for a file that is not its own
        return getattr(fault, "strerror", None) or type(fault).__name__
    return f"the checksum of {broken} is wrong" if broken else ""


def load(file: Path, mmap: bool = False) -> dict[str, Any]:
    """What is in a checkpoint, to be read from the file when it is used with `mmap`; nothing in it is executed.

    Raises `UserError` for one that is none of ours.
    """
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as fault:  # torch has no one error for a file that is not its own
        raise _damaged(file, type(fault).__name__) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(CARD), dict):
        raise UserError(f"{file} was not written by showattendtell; give a best.ckpt or last.ckpt of its training")
    return checkpoint


def save(content: Mapping[str, Any], file: Path, keep: Path | None = None) -> None:
    """Write a checkpoint, which is there as a whole or not at all; an OSError where it cannot be written.

    Args:
        keep: the name that what was there gets.
    """
    try:
        with whole_file(file, keep) as stream:
            torch.save(content, stream)
    except RuntimeError as fault:  # torch has an error of its own for a full disk
        raise fault.__context__ if isinstance(fault.__context__, OSError) else fault from None


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged or no checkpoint ({reason}); take last.ckpt or train again")


def read_checkpoint(file: Path) -> Portable:
    """What a checkpoint, or a folder with a model, holds.

    Raises `UserError` for one that is damaged, none of ours, or of another format.
    """
    if file.is_dir() and not (file / CONFIG).is_file():
        raise UserError(f"the checkpoint {file} is a folder; give the best.ckpt or last.ckpt in it")
    card, state = read_portable(file) if file.is_dir() else _read(file)
    if card.get("format") != FORMAT:
        raise UserError(
            f"{file} was written by showattendtell {card.get('version')} in format {card.get('format')}, this is "
            f"{__version__} and reads format {FORMAT}; install that version for it, or train again"
        )
    return Portable(card, state)


def _read(file: Path) -> Portable:
    if damage := find_damage(file):
        raise _damaged(file, damage)
    checkpoint = load(file)
    return Portable(checkpoint[CARD], checkpoint.get("state_dict", {}))
