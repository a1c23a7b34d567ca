"""Checkpoints that say what they are: written in training, and all that scoring and captioning need."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf

from showattendtell import __version__
from showattendtell.config.build import build, build_captioner, settled
from showattendtell.data.images import Preprocessing
from showattendtell.decode import Decoding
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.module import CARD, CaptioningModule
from showattendtell.records import Dataset, fingerprint
from showattendtell.text.vocabulary import Vocabulary

FORMAT = 1


class Restored(NamedTuple):
    """A trained model ready for use, the configuration it was trained with, and the file's SHA-256."""

    module: CaptioningModule
    config: DictConfig
    sha256: str


def write_card(config: DictConfig, vocabulary: Vocabulary, encoder: Encoder, dataset: Dataset) -> dict[str, Any]:
    """What a checkpoint says of itself, in plain numbers, strings, lists and dicts."""
    return {
        "format": FORMAT,
        "version": __version__,
        "config": OmegaConf.to_container(config, resolve=True),
        "vocabulary": list(vocabulary.words),
        "encoder": encoder.describe(),
        "splits": {name: fingerprint(split) for name, split in dataset.splits.items()},
    }


def build_module(
    config: DictConfig, encoder: Encoder, vocabulary: Vocabulary, card: dict[str, Any]
) -> CaptioningModule:
    """The model that a training configuration describes, with fresh weights."""
    return CaptioningModule(
        encoder,
        build_captioner(config, encoder.dim, len(vocabulary)),
        vocabulary,
        loss=build(config.loss),
        decoding=build(config.decoding),
        optimizer=lambda groups: build(config.optimizer, params=groups),
        schedule=build(config.schedule),
        card=card,
    )


def restore(path: str, device: str, decoding: Decoding) -> Restored:
    """The model in a checkpoint. Nothing in the file is executed.

    Args:
        device: `cpu`, `cuda`, or `auto` for the GPU if there is one.
        decoding: how it is to write captions.

    Raises `UserError` for a file that is missing, damaged, none of ours, or of another format.
    """
    file = Path(path).expanduser()
    card, state = _read(file)
    config = DictConfig(card["config"])
    encoder = build(settled(config.encoder, weights="random"))
    encoder.preprocessing = Preprocessing(**card["encoder"]["preprocessing"])
    module = build_module(config, encoder, Vocabulary(card["vocabulary"]), card)
    module.decoding = decoding
    try:
        module.load_state_dict(state)
    except RuntimeError as fault:
        raise UserError(
            f"the weights in {path} do not fit its own configuration: {str(fault).splitlines()[-1].strip()}"
        ) from None
    return Restored(module.eval().to(_device(device)), config, hashlib.sha256(file.read_bytes()).hexdigest())


def _device(name: str) -> torch.device:
    try:
        return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise UserError(f"device={name} is none; take cpu, cuda, cuda:1, ... or auto") from None


def _read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if not file.is_file():
        raise UserError(f"the checkpoint {file} does not exist; training writes runs/.../best.ckpt")
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as fault:  # torch has no one error for a file that is not its own
        raise UserError(
            f"{file} is damaged or no checkpoint ({type(fault).__name__}); take last.ckpt or train again"
        ) from None
    if not isinstance(checkpoint, dict) or CARD not in checkpoint:
        raise UserError(f"{file} was not written by showattendtell; give a best.ckpt or last.ckpt of its training")
    card = checkpoint[CARD]
    if card["format"] != FORMAT:
        raise UserError(
            f"{file} was written by showattendtell {card['version']} in format {card['format']}, this is {__version__} "
            f"and reads format {FORMAT}; install showattendtell {card['version']} for it, or train again"
        )
    return card, checkpoint["state_dict"]
