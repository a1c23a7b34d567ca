"""A trained model as a folder that can be sent on or published: its configuration, its weights and a model card."""

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
from showattendtell.files import whole_file
from showattendtell.pretrained import reach_hub

CONFIG, WEIGHTS = "config.json", "model.safetensors"

ENCODER = "encoder."
"""How the names of the encoder's weights begin."""

CACHE = '${oc.env:SHOWATTENDTELL_CACHE,"~/.cache/showattendtell"}'
"""Where stored grids are on whichever machine the model is used."""

SHIPPED = "flickr8k_soft"
"""The model that is installed with the package."""


class Portable(NamedTuple):
    """What a folder holds: what the model says of itself, and its weights by their names."""

    card: dict[str, Any]
    state: dict[str, Tensor]


def write_portable(folder: Path, card: Mapping[str, Any], state: Mapping[str, Tensor], with_encoder: bool) -> None:
    """Write `config.json` and `model.safetensors`, matrices in half precision.

    Places on this machine are no business of others': of absolute paths in the configuration the last part stays.

    Args:
        with_encoder: whether the encoder's weights are not published elsewhere.
    """
    config = {**without_places(card["config"]), "cache": CACHE}
    if with_encoder:
        config["encoder"] = {**config["encoder"], "weights": "random"}
    told = {name: value for name, value in card.items() if name not in ("config", "arguments")}
    weights = {
        name: (value.half() if value.is_floating_point() and value.ndim > 1 else value).contiguous()
        for name, value in state.items()
        if not name.startswith("loss.") and (with_encoder or not name.startswith(ENCODER))
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"library_name": "showattendtell", **told, "config": config}, indent=1, ensure_ascii=False)
    content = {WEIGHTS: save(weights, metadata={"format": "pt"}), CONFIG: f"{text}\n".encode()}
    for name, written in content.items():
        with whole_file(folder / name) as stream:
            stream.write(written)


def without_places(settings: Any) -> Any:
    """A configuration as plain data, absolute paths cut to their last part."""
    if isinstance(settings, Mapping):
        return {name: without_places(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [without_places(value) for value in settings]
    is_place = isinstance(settings, str) and (settings.startswith("~") or Path(settings).is_absolute())
    return Path(settings).name if is_place else settings


def read_portable(folder: Path) -> Portable:
    """Raises `UserError` for a folder that holds none of ours, or a damaged one; nothing in it is executed."""
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} is no model: it has no {missing[0]}; give another")
    try:
        card = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = load_file(folder / WEIGHTS)
    except Exception as fault:  # JSON and safetensors each have their own errors for a file that is not theirs
        raise UserError(f"the model in {folder} is damaged ({type(fault).__name__}); fetch it again") from None
    if not isinstance(card, dict) or card.get("library_name") != "showattendtell":
        raise UserError(f"the model in {folder} is none of showattendtell's; give one that save_pretrained wrote")
    return Portable(card, state)


def shipped_models() -> dict[str, Path]:
    """The folders of the models that are installed with the package, by their names."""
    root = Path(str(files("showattendtell") / "shipped"))
    return {folder.parent.name: folder.parent for folder in sorted(root.glob(f"*/{CONFIG}"))}


def find_model(name: str) -> Path:
    """The file or folder that a user names: one of this machine, a model of the package, or one on the hub, as
    `owner/name` or `owner/name@revision`.

    Raises `UserError` where there is none.
    """
    path, shipped = Path(name).expanduser(), shipped_models()
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
    """Of a checkpoint or a folder: the file that no other model has alike."""
    return model / WEIGHTS if model.is_dir() else model


def beside(checkpoint: str, name: str) -> Path:
    """A file in the folder in which a checkpoint is; where the user is, for a model that is not theirs."""
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
    """A model of the hub, or of the mirror that HF_ENDPOINT names; from the cache where neither can be reached."""
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
