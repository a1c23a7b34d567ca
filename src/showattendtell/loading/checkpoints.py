"""Checkpoints and model folders: read and write them, and check their content.

A checkpoint is a file of torch with metadata from which the model is rebuilt, and its weights. A model folder is for
publishing: `config.json`, `model.safetensors` and a model card. No code in either is executed.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import StrictBool
from safetensors.torch import load_file
from safetensors.torch import save as safetensors
from torch import Tensor
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from showattendtell import __version__
from showattendtell.config.validation import check_content, sentence
from showattendtell.errors import UserError, printable
from showattendtell.loading.hub import CONFIG
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.files import WEIGHTS, atomic_write, check_regular, read_regular
from showattendtell.text.parsing import check_layout
from showattendtell.text.tokenizers import Tokenizer
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.types import Dataset, fingerprint

FORMAT = 3

METADATA_KEY = "showattendtell"
"""Key of the metadata in a checkpoint."""

ENCODER = "encoder."
"""Prefix of the encoder's weights in a state dict."""

CONFIDENCE = "confidence"
"""Entry of a checkpoint with the tensors of its `Confidence`; in a model folder the prefix of their names."""


class _EncoderMetadata(TypedDict):
    preprocessing: dict[str, Any]
    weights_sha256: str
    tuned: NotRequired[StrictBool]


class _StoredConfig(TypedDict):
    cache: NotRequired[str | None]
    encoder: dict[str, Any]
    tokenizer: dict[str, Any]
    attention: dict[str, Any] | None
    decoder: dict[str, Any] | None


class _Metadata(TypedDict):
    """Metadata of a checkpoint: the fields that are read, for pydantic."""

    version: str
    config: _StoredConfig
    choices: dict[str, str]
    vocabulary: list[str]
    encoder: _EncoderMetadata
    splits: dict[str, str]
    tokenizer: NotRequired[dict[str, Any]]


def build_metadata(
    record: Mapping[str, Any], choices: Mapping[str, str], vocabulary: Vocabulary, encoder: Encoder, dataset: Dataset
) -> dict[str, Any]:
    """Return the metadata of a checkpoint as plain numbers, strings, lists and dicts.

    Args:
        record: the settings of training as plain data.
        choices: the option of each config group that was chosen.

    `load_model` reads the settings `encoder`, `attention`, `decoder` and `tokenizer`; `evaluate` also `dataset`,
    `cache`, `features` and `seed`.
    """
    metadata = {
        "format": FORMAT,
        "version": __version__,
        "config": dict(record),
        "choices": dict(choices),
        "vocabulary": list(vocabulary.words),
        "encoder": encoder.describe(),
        "splits": {name: fingerprint(split) for name, split in dataset.splits.items()},
    }
    if state := vocabulary.tokenizer.state():
        metadata["tokenizer"] = state
    return {METADATA_KEY: metadata}


def read_vocabulary(metadata: Mapping[str, Any], tokenizer: Tokenizer, path: str | Path) -> Vocabulary:
    """Return the vocabulary in a checkpoint's metadata.

    Args:
        tokenizer: the tokenizer of its configuration, whose state is restored.

    Raises:
        UserError: vocabulary or tokenizer were altered.
    """
    try:
        if state := metadata.get("tokenizer", {}):
            tokenizer.load_state(state)
        tokenizer.tokenize("")  # without its state, a tokenizer that learns raises an error
        vocabulary = Vocabulary(metadata["vocabulary"], tokenizer)
        "".join(vocabulary.words).encode()  # JSON may have lone surrogates, which no file and no font has
        if tokenizer.tokens is not None and not {*tokenizer.tokens} <= {*vocabulary.words}:
            raise UserError("it has tokens that are not in the vocabulary")
    except (UserError, ValueError) as error:
        raise UserError(f"the tokenizer in {path} was altered ({error}); use another copy of it") from None
    return vocabulary


def has_encoder(state: Mapping[str, Tensor]) -> bool:
    """Return whether a state dict has the encoder's weights, which are otherwise those that its package publishes."""
    return any(name.startswith(ENCODER) for name in state)


FOLDER = 0x10  # the attribute of a folder in a zip archive


def find_damage(file: Path) -> str:
    """Return what is wrong with the file of a checkpoint; an empty text if it is intact.

    torch stores a CRC-32 with each part of the file, but does not verify it.
    """
    try:
        check_regular(file)
        with zipfile.ZipFile(file) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                return "it is compressed, as torch never writes it"
            if any(part.external_attr & FOLDER for part in parts.infolist()):
                return "one of its parts is marked as a folder"  # torch would read uninitialized memory
            damaged = parts.testzip()
        if not damaged:
            torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # zipfile and torch raise many types for a damaged file
        return getattr(error, "strerror", None) or type(error).__name__
    return f"the checksum of {damaged} is wrong" if damaged else ""


def load(file: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint. No code in it is executed.

    Args:
        mmap: read tensors from the file when they are used.

    Raises:
        UserError: the file is damaged, or not from this project.
    """
    try:
        check_regular(file)
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises many types for a damaged file
        raise _damaged(file, type(error).__name__) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(METADATA_KEY), dict):
        raise UserError(f"{file} was not written by showattendtell; give a best.ckpt or last.ckpt of its training")
    return checkpoint


def save(content: Mapping[str, Any], file: Path, keep: Path | None = None) -> None:
    """Write a checkpoint atomically. See `atomic_write`.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with atomic_write(file, keep) as stream:
            torch.save(content, stream)
    except RuntimeError as error:  # torch raises its own error for a full disk
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged or no checkpoint ({reason}); give a best.ckpt or last.ckpt, or a model folder")


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the state dict of a checkpoint or a model folder.

    Raises:
        UserError: it is damaged, not from this project, or of another format.
    """
    if file.is_dir():
        metadata, state = read_model_folder(file)
    elif damage := find_damage(file):
        raise _damaged(file, damage)
    else:
        checkpoint = load(file)
        metadata, state = checkpoint[METADATA_KEY], checkpoint.get("state_dict", {})
        confidence = checkpoint.get(CONFIDENCE, {})
        if isinstance(state, dict) and isinstance(confidence, dict):
            state = state | {f"{CONFIDENCE}.{name}": values for name, values in confidence.items()}
    check_metadata(metadata, file)
    _check_weights(state, file)
    return metadata, state


def check_metadata(metadata: Mapping[str, Any], file: str | Path) -> None:
    """Raise `UserError` unless metadata are of this format, and their fields of the types that are read."""
    check_content(metadata, file)
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"{file} was written by showattendtell {printable(str(metadata.get('version')), 20)} in format "
            f"{printable(repr(metadata.get('format')), 20)}, this is {__version__} and reads format {FORMAT}; install "
            "that version for it, or train again"
        )
    check_layout(metadata, _Metadata, f"the metadata of {file} were altered")


NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool}
"""The types of weights; other types are complex numbers, or values that torch computes nothing with."""


def _check_weights(state: Any, file: Path) -> None:
    """Raise `UserError` unless a state dict has tensors that are stored completely, with finite values."""
    if not isinstance(state, dict) or not all(isinstance(weights, Tensor) for weights in state.values()):
        raise _damaged(file, "its state_dict is not one of tensors")
    for name, weights in state.items():
        # a tensor with a stride of 0 has more values than the file
        is_plain = weights.layout == torch.strided and weights.device.type == "cpu" and not weights.is_quantized
        if not isinstance(name, str) or not is_plain or weights.untyped_storage().nbytes() < weights.nbytes:
            raise _damaged(file, f"{name} is not stored in full")
        if weights.dtype not in NUMBERS or not weights.isfinite().all():
            raise UserError(f"{file} was altered: {name} has values that are not finite real numbers; use another copy")


def write_model_folder(
    folder: Path, metadata: Mapping[str, Any], state: Mapping[str, Tensor], with_encoder: bool
) -> None:
    """Write `config.json` and `model.safetensors`, with matrices in half precision.

    Of absolute paths in the configuration only the last part is kept, and nothing of `cache`.

    Args:
        with_encoder: include the encoder's weights.
    """
    config = {**without_folders(metadata["config"]), "cache": None}
    if with_encoder:
        config["encoder"] = {**config["encoder"], "weights": "random"}
    left_out = ("loss.",) if with_encoder else ("loss.", ENCODER)
    weights = {}
    for name, value in state.items():
        if not name.startswith(left_out):
            is_matrix = value.is_floating_point() and value.ndim > 1
            weights[name] = (value.half() if is_matrix else value).contiguous()
    card = {"library_name": "showattendtell", **metadata, "config": config}
    text = json.dumps(card, indent=1, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / WEIGHTS) as stream:
        stream.write(safetensors(weights, metadata={"format": "pt"}))
    with atomic_write(folder / CONFIG) as stream:
        stream.write(f"{text}\n".encode())


def without_folders(settings: Any) -> Any:
    """Return settings with the last part of each absolute path in its place: on other machines it has no meaning."""
    if isinstance(settings, Mapping):
        return {name: without_folders(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [without_folders(value) for value in settings]
    is_path = isinstance(settings, str) and (settings.startswith("~") or Path(settings).is_absolute())
    return Path(settings).name if is_path else settings


def read_model_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the state dict in a model folder. No code in it is executed.

    Raises:
        UserError: it is damaged or not from this project.
    """
    try:
        metadata = json.loads(read_regular(folder / CONFIG))
        check_regular(folder / WEIGHTS)
        state = load_file(folder / WEIGHTS)
    except Exception as error:  # JSON and safetensors raise different types for a damaged file
        raise UserError(f"the model in {folder} cannot be read ({sentence(error)}); download it again") from None
    if not isinstance(metadata, dict) or metadata.get("library_name") != "showattendtell":
        raise UserError(
            f"the model in {folder} was not written by showattendtell; give a folder that save_pretrained wrote"
        )
    return metadata, state
