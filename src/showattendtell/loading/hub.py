"""Find what a command names: trained models as files, runs, model folders, bundled models and models on the hub; and
the folder of a data set.

Nothing here imports torch, so that a command reports a wrong name at once.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path

from showattendtell.errors import UserError, did_you_mean, printable
from showattendtell.images.names import PUBLISHED, dataset_folder
from showattendtell.runtime.files import BEST, LAST, WEIGHTS, expand_home
from showattendtell.runtime.process import is_launched
from showattendtell.settings import Node

BUNDLED = "flickr8k_soft"
"""Name of the default bundled model."""

ON_HUB = re.compile(r"\w[\w.-]*/[\w.-]+")
"""Pattern of the name of a model on the hub."""

CONFIG, CARD = "config.json", "README.md"
"""Names of the metadata and of the model card in a model folder."""


def check_root(dataset: Node) -> None:
    """Raise `UserError` if the folder of a published data set does not exist. Readers check theirs too, but later; so
    do several processes, of which one reports it."""
    module, _, name = dataset.target.partition(".read_")
    if module.startswith("showattendtell.readers.") and name in PUBLISHED and not is_launched():
        dataset_folder(dataset.arguments["root"], name)


def bundled_models() -> dict[str, Path]:
    """Return the folder of each bundled model by its name."""
    root = Path(str(files("showattendtell") / "shipped"))
    return {file.parent.name: file.parent for file in sorted(root.glob(f"*/{CONFIG}"))}


def find_model(name: str) -> Path:
    """Return the file or folder of a model, which is downloaded if it is on the hub.

    Args:
        name: a checkpoint; the folder of a run, which stands for its best checkpoint; a model folder; the name of a
            bundled model; or `owner/name` or `owner/name@revision` on the hub.

    Raises:
        UserError: it is not found, or cannot be downloaded.
    """
    path, bundled = expand_home(name), bundled_models()
    if path.is_dir() and not (path / CONFIG).is_file():
        checkpoints = [path / file for file in (BEST, LAST) if (path / file).is_file()]
        if not checkpoints:
            raise UserError(f"the checkpoint {path} is a folder without a {BEST}; give the path of a .ckpt file")
        return checkpoints[0]
    if path.exists():
        return path
    if name in bundled:
        return bundled[name]
    repository, _, revision = name.partition("@")
    if ON_HUB.fullmatch(repository) and not repository.endswith((".ckpt", ".safetensors", ".pt")):
        return _download(name, repository, revision or None)
    hint = did_you_mean(name, bundled)
    raise UserError(
        f"the checkpoint {name} does not exist{hint if 'did you mean' in hint else ''}; training writes best.ckpt into "
        f"runs/..., {' and '.join(bundled)} comes with the package, and owner/name is one on the hub"
    )


@cache
def _download(name: str, repository: str, revision: str | None) -> Path:
    """Download a model from the hub, or the mirror that HF_ENDPOINT names; without either, use the cache."""
    from huggingface_hub import hf_hub_download

    from showattendtell.models.pretrained import reach_hub

    reach_hub()
    try:
        with suppress(OSError):  # a model may have no card
            hf_hub_download(repository, CARD, revision=revision)
        hf_hub_download(repository, WEIGHTS, revision=revision)
        return Path(hf_hub_download(repository, CONFIG, revision=revision)).parent
    except Exception as error:  # the hub's client raises a dozen types for a missing network, name or file
        raise UserError(
            f"the model {name} does not exist here and could not be downloaded from the hub "
            f"({type(error).__name__}); give the path of a checkpoint, or a folder that save_pretrained wrote"
        ) from None


def next_to(checkpoint: str, name: str) -> Path:
    """Return the path of a file next to a checkpoint; in the working directory for a bundled model or one on the
    hub."""
    return find_model(checkpoint).with_name(name) if expand_home(checkpoint).exists() else Path(name)


def note_about(names: Iterable[str]) -> str:
    """Return what users should know about the models of these names: the notes of their model cards."""
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    notes = []
    for name in names:
        with suppress(OSError, ValueError, YAMLError):  # without a card, or with one of another kind
            note = ModelCard.load(find_model(name) / CARD).data.to_dict().get("note")
            notes += [f"{name} {printable(str(note), 300)}"] if note else []
    return "; ".join(notes)
