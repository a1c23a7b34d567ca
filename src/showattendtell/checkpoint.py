"""Checkpoints that say what they are: written in training, and all that scoring and captioning need."""

import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.plugins.io import TorchCheckpointIO

from showattendtell import __version__
from showattendtell.config.build import TRUST, build, build_captioner, foreign_targets, settled
from showattendtell.config.check import find_faults, raise_all
from showattendtell.config.entry import Chosen
from showattendtell.data.images import Preprocessing
from showattendtell.decode.decoding import Decoding
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.files import whole_file
from showattendtell.loss import HardLoss
from showattendtell.model.hard import HardAttention
from showattendtell.module import CARD, CaptioningModule
from showattendtell.records import Dataset, fingerprint
from showattendtell.text.vocabulary import Vocabulary

FORMAT = 2

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint with all its content or not at all.

    Lightning's own may leave half of it where it writes to another disk than that of its temporary files, and does not
    wait until the disk has it.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Raises `UserError` where it cannot be written; what was there stays.

        Args:
            storage_options: `keep`, the name that what was there gets.
        """
        file = Path(path)
        try:
            with whole_file(file, (storage_options or {}).get("keep")) as stream:
                torch.save(checkpoint, stream)
        except (OSError, RuntimeError) as fault:
            cause = fault if isinstance(fault, OSError) else fault.__context__  # torch has an error of its own
            if not isinstance(cause, OSError):
                raise
            raise UserError(
                f"{file} cannot be written ({cause.strerror}); what was saved before is whole, and with room the run "
                "goes on from there with resume=true"
            ) from None


class Restored(NamedTuple):
    """A trained model ready for use, the configuration it was trained with, what was chosen for it by group, and the
    file's SHA-256."""

    module: CaptioningModule
    config: DictConfig
    choices: dict[str, str]
    sha256: str


def write_card(
    config: DictConfig, chosen: Chosen, vocabulary: Vocabulary, encoder: Encoder, dataset: Dataset
) -> dict[str, Any]:
    """What a checkpoint says of itself, in plain numbers, strings, lists and dicts."""
    return {
        "format": FORMAT,
        "version": __version__,
        "config": plain_settings(config),
        "choices": chosen.choices,
        "arguments": chosen.arguments,
        "vocabulary": list(vocabulary.words),
        "encoder": encoder.describe(),
        "splits": {name: fingerprint(split) for name, split in dataset.splits.items()},
    }


def plain_settings(config: DictConfig) -> dict[str, Any]:
    """A training configuration without what only says from where it goes on."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return {name: value for name, value in settings.items() if name != "resume"}


def build_module(
    config: DictConfig, encoder: Encoder, vocabulary: Vocabulary, card: dict[str, Any]
) -> CaptioningModule:
    """The model that a training configuration describes, with fresh weights.

    From here on the processor takes subnormal numbers for 0: the alphas of a saturated softmax are such, and would make
    each step several times slower.
    """
    torch.set_flush_denormal(True)
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


def restore(path: str, device: str, decoding: Decoding, attention: DictConfig | None = None) -> Restored:
    """The model in a checkpoint. Nothing in the file is executed.

    Args:
        device: `cpu`, `cuda`, or `auto` for the GPU if there is one.
        decoding: how it is to write captions.
        attention: settings of the attention that are to be other than in training, where they are not null.

    Raises `UserError` for a file that is missing, damaged, none of ours, or of another format.
    """
    file = Path(path).expanduser()
    card, state = _read(file)
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
        encoder = build(settled(config.encoder, weights="random"))
        encoder.preprocessing = Preprocessing(**card["encoder"]["preprocessing"])
        module = build_module(config, encoder, Vocabulary(card["vocabulary"]), card)
    except (KeyError, TypeError, ValueError) as fault:
        raise UserError(f"{path} was altered since it was written ({fault}); train again") from None
    module.decoding = decoding
    try:
        module.load_state_dict(state)
    except RuntimeError as fault:
        raise UserError(
            f"the weights in {path} do not fit its own configuration: {str(fault).splitlines()[-1].strip()}"
        ) from None
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return Restored(module.eval().to(_device(device)), config, card["choices"], sha256)


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
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
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


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged or no checkpoint ({reason}); take last.ckpt or train again")


def _read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if file.is_dir():
        raise UserError(f"the checkpoint {file} is a folder; give the best.ckpt or last.ckpt in it")
    if not file.is_file():
        raise UserError(f"the checkpoint {file} does not exist; training writes runs/.../best.ckpt")
    if damage := find_damage(file):
        raise _damaged(file, damage)
    checkpoint = load(file)
    card = checkpoint[CARD]
    if card.get("format") != FORMAT:
        raise UserError(
            f"{file} was written by showattendtell {card.get('version')} in format {card.get('format')}, this is "
            f"{__version__} and reads format {FORMAT}; install that version for it, or train again"
        )
    return card, checkpoint.get("state_dict", {})
