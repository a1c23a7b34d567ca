"""A trained model as a folder to share or publish: its configuration, its weights and a model card."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import hf_hub_download
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import load_file, save
from torch import Tensor

from showattendtell.errors import UserError, did_you_mean
from showattendtell.models.pretrained import reach_hub
from showattendtell.runtime.files import atomic_write

CONFIG, WEIGHTS = "config.json", "model.safetensors"

ENCODER = "encoder."
"""Prefix of the names of the encoder's weights."""

CACHE = '${oc.env:SHOWATTENDTELL_CACHE,"~/.cache/showattendtell"}'
"""Folder of feature caches, resolved on the machine that uses the model."""

SHIPPED = "flickr8k_soft"
"""The bundled model."""


class SavedModel(NamedTuple):
    """Content of a model folder: its metadata, and the weights by their names."""

    card: dict[str, Any]
    state: dict[str, Tensor]


def write_model_folder(folder: Path, card: Mapping[str, Any], state: Mapping[str, Tensor], with_encoder: bool) -> None:
    """Write `config.json` and `model.safetensors`, matrices in half precision.

    Absolute paths in the configuration are cut to their last part, since they have no meaning on other machines.

    Args:
        with_encoder: write the encoder's weights, because they are not published elsewhere.
    """
    config = {**without_places(card["config"]), "cache": CACHE}
    if with_encoder:
        config["encoder"] = {**config["encoder"], "weights": "random"}
    metadata = {name: value for name, value in card.items() if name not in ("config", "arguments")}
    weights = {
        name: (value.half() if value.is_floating_point() and value.ndim > 1 else value).contiguous()
        for name, value in state.items()
        if not name.startswith("loss.") and (with_encoder or not name.startswith(ENCODER))
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"library_name": "showattendtell", **metadata, "config": config}, indent=1, ensure_ascii=False)
    content = {WEIGHTS: save(weights, metadata={"format": "pt"}), CONFIG: f"{text}\n".encode()}
    for name, written in content.items():
        with atomic_write(folder / name) as stream:
            stream.write(written)


def without_places(settings: Any) -> Any:
    """Return a configuration as plain data, with absolute paths cut to their last part."""
    if isinstance(settings, Mapping):
        return {name: without_places(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [without_places(value) for value in settings]
    is_place = isinstance(settings, str) and (settings.startswith("~") or Path(settings).is_absolute())
    return Path(settings).name if is_place else settings


def read_model_folder(folder: Path) -> SavedModel:
    """Read a model folder; nothing in it is executed. Raises `UserError` if it is damaged or not from this project."""
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} is no model: it has no {missing[0]}; give another")
    try:
        card = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = load_file(folder / WEIGHTS)
    except Exception as fault:  # JSON and safetensors raise different types for a damaged file
        raise UserError(f"the model in {folder} is damaged ({type(fault).__name__}); fetch it again") from None
    if not isinstance(card, dict) or card.get("library_name") != "showattendtell":
        raise UserError(f"the model in {folder} is none of showattendtell's; give one that save_pretrained wrote")
    return SavedModel(card, state)


def bundled_models() -> dict[str, Path]:
    """Return the folders of the bundled models by their names."""
    root = Path(str(files("showattendtell") / "shipped"))
    return {folder.parent.name: folder.parent for folder in sorted(root.glob(f"*/{CONFIG}"))}


def find_model(name: str) -> Path:
    """Return the file or folder of a model: a path on this machine, a bundled model, or one on the hub, as
    `owner/name` or `owner/name@revision`.

    Raises `UserError` if it is not found.
    """
    path, shipped = Path(name).expanduser(), bundled_models()
    if path.exists():
        return path
    if name in shipped:
        return shipped[name]
    if _is_on_hub(name):
        return _fetch(name)
    hint = did_you_mean(name, shipped)
    raise UserError(
        f"the checkpoint {name} does not exist{hint if 'did you mean' in hint else ''}; training writes best.ckpt into "
        f"runs/..., {' and '.join(shipped)} comes with the package, and owner/name is one on the hub"
    )


def weights_file(model: Path) -> Path:
    """Return the file with the weights of a checkpoint or a model folder, which identifies the model."""
    return model / WEIGHTS if model.is_dir() else model


def next_to(checkpoint: str, name: str) -> Path:
    """Return a file in the folder of a checkpoint; in the working directory for a bundled model or one on the hub."""
    path = Path(checkpoint).expanduser()
    return path.with_name(name) if path.exists() else Path(name)


def _is_on_hub(name: str) -> bool:
    repository = name.partition("@")[0]
    try:
        validate_repo_id(repository)
    except ValueError:
        return False
    return repository.count("/") == 1 and not repository.endswith((".ckpt", ".safetensors", ".pt")) and name[0] != "."


def _fetch(name: str) -> Path:
    """Download a model from the hub, or the mirror that HF_ENDPOINT names; if neither can be reached, use the cache."""
    repository, _, revision = name.partition("@")
    reach_hub()
    try:
        files = [hf_hub_download(repository, name, revision=revision or None) for name in (CONFIG, WEIGHTS)]
        return Path(files[0]).parent
    except Exception as fault:  # the hub's client raises a dozen types for a missing network, name or file
        raise UserError(
            f"the model {name} is no file here, and could not be fetched from the hub ({type(fault).__name__}); give "
            "the path of a checkpoint, or a folder that save_pretrained wrote"
        ) from None
