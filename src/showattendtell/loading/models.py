"""Load trained models, average their weights, and start trainings from them. A confidence is stored and loaded with the
weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from showattendtell.config.compose import MODEL, as_node, as_record, model_differences
from showattendtell.config.instantiate import build, build_captioner, build_vocabulary
from showattendtell.config.schemas import InferenceAttentionSettings, StoredSettings, TrainSettings
from showattendtell.config.validation import check_targets, checked, find_targets, sentence, validate
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.confidence import CURVE_LIMIT, NAMES, Confidence
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, listed
from showattendtell.images.reading import Preprocessing
from showattendtell.loading.checkpoints import (
    CONFIDENCE,
    ENCODER,
    METADATA_KEY,
    has_encoder,
    read_checkpoint,
    read_vocabulary,
    write_model_folder,
)
from showattendtell.loading.hub import find_model
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import state_hash
from showattendtell.runtime.distributed import local_device
from showattendtell.runtime.files import sha256
from showattendtell.settings import Node
from showattendtell.text.parsing import check_layout
from showattendtell.text.vocabulary import UNK, Vocabulary
from showattendtell.types import Dataset

WORD_BIAS = "decoder.word_scores.bias"
WORD_WEIGHTS = ("decoder.embedding.weight", "decoder.word_scores.weight", WORD_BIAS)
"""The weights of a captioner with a row for each word."""

TRAINED = InferenceAttentionSettings()
"""Attention as in training."""


IN_MEMORY = StoredSettings(encoder=Node(""), tokenizer=Node(""), attention=Node(""), decoder=Node(""))
"""Those of a model that was not read from a checkpoint."""


class LoadedModel(NamedTuple):
    """A trained model, the settings that it was read with, the metadata of its checkpoint, and its confidence, if it
    has one."""

    module: ImageCaptioner
    settings: StoredSettings
    metadata: dict[str, Any]
    confidence: Confidence | None = None

    @property
    def choices(self) -> dict[str, str]:
        """The option of each config group that was chosen for training."""
        return self.metadata["choices"]

    @property
    def record(self) -> dict[str, Any]:
        """The settings of training, with those of the attention that were changed."""
        return {**self.metadata.get("config", {}), "attention": as_record(self.settings.attention)}


def load_model(
    path: str, device: str, decoding: Decoding, attention: InferenceAttentionSettings = TRAINED
) -> LoadedModel:
    """Load a trained model from a checkpoint. No code in the file is executed.

    Args:
        path: a checkpoint, a model folder, or a name that `find_model` accepts.
        device: `cpu`, `cuda`, or `auto` for the GPU of this process if there is one.
        decoding: how captions are generated.
        attention: settings of the attention. Those that are not None override the settings of training.

    Raises:
        UserError: the file is missing, damaged, not from this project, or of another format; it names a class that is
            not trusted; or there is no such device.
    """
    metadata, state = read_checkpoint(find_model(path))
    confidence = take_confidence(state, path)
    try:
        settings = _read_settings(metadata, path, attention)
        module = _build_module(settings, metadata, state, decoding, path)
    except Exception as error:  # another version of a library may raise any type
        if isinstance(error, UserError) and not error.__cause__:  # with one, a class has rejected its settings
            raise
        raise UserError(
            f"{path} cannot be loaded ({sentence(error)}): either the file was altered, or showattendtell or a package "
            f"of its encoder changed since version {metadata.get('version')} wrote it; --debug shows the traceback"
        ) from error
    encoder = module.encoder
    if not has_encoder(state) and state_hash(encoder.network.state_dict()) != metadata["encoder"]["weights_sha256"]:
        raise UserError(
            f"the weights {encoder.weights} of {encoder.network_name} are not those that {path} was trained on; "
            "install the release of the encoder's package that it was trained with"
        )
    if confidence and len(confidence.mean) != encoder.region_dim:
        raise UserError(f"the confidence in {path} is that of another encoder; use another copy of it")
    target = _device(device)
    return LoadedModel(module.eval().to(target), settings, metadata, confidence and confidence.to(target))


BUILT = ("encoder", "tokenizer", "attention", "decoder", "dataset", "features")
"""Parts of stored settings that are built from a checkpoint. The others are a record of the training."""


def _read_settings(metadata: Mapping[str, Any], path: str, attention: InferenceAttentionSettings) -> StoredSettings:
    """Return the validated settings in a checkpoint's metadata, with other ones of the attention.

    Raises:
        UserError: as `load_model`.
    """
    stored = metadata["config"]
    _check_named(stored, path)
    parts = {name: stored[name] for name in BUILT if stored.get(name)}
    check_targets(parts, path)
    if errors := validate(parts):
        raise UserError(f"the configuration in {path} is not valid in this version: {errors[0]}")
    nodes = as_node(parts)
    nodes["attention"] = nodes["attention"].changed(**vars(attention))
    checked({"attention": as_record(nodes["attention"])})
    cache = stored.get("cache")
    if cache and cache.startswith("${"):  # in model folders of older versions
        cache = None
    return StoredSettings(**nodes, cache=cache, seed=stored.get("seed", 1))


def _check_named(stored: Mapping[str, Any], path: str | Path) -> None:
    for part in ("attention", "decoder"):
        if stored[part] is None:  # as `describe_call` returns
            raise UserError(
                f"{path} does not say how to build its {part}, which is not an importable class; move the class into "
                "a module, or load the checkpoint in Python with CaptioningModule.load_from_checkpoint(..., "
                f"{part}=...)"
            )


def _build_module(
    settings: StoredSettings, metadata: Mapping[str, Any], state: dict[str, Tensor], decoding: Decoding, path: str
) -> ImageCaptioner:
    """Build the model of a checkpoint with its weights.

    Raises:
        UserError: the shapes or the metadata do not fit.
    """
    vocabulary = read_vocabulary(metadata, build(settings.tokenizer), path)
    if has_encoder(state):
        make_encoder = partial(build, settings.encoder.changed(weights="random"))
        encoder = _build_part(make_encoder, ENCODER, state, path)
    elif has_published_weights(settings.encoder):
        encoder = build(settings.encoder)
    else:
        raise UserError(f"{path} was altered: it has no weights of its encoder; use another copy of it")
    stored = metadata["encoder"]["preprocessing"]
    preprocessing = check_layout(stored, Preprocessing, f"the preprocessing in {path} was altered")
    for name in ("resize", "crop", "crop_mode"):  # the grid is that of the configuration
        if getattr(preprocessing, name) != getattr(encoder.preprocessing, name):
            raise UserError(f"the preprocessing in {path} does not fit its own configuration; use another copy of it")
    encoder.preprocessing = preprocessing
    encoder.tuned = metadata["encoder"].get("tuned", False)
    make_captioner = partial(build_captioner, settings.attention, settings.decoder, encoder.region_dim, len(vocabulary))
    captioner = _build_part(make_captioner, "captioner.", state, path)
    return ImageCaptioner(encoder, captioner, vocabulary, decoding)


def _build_part(make: Callable[[], Any], prefix: str, state: Mapping[str, Tensor], path: str) -> Any:
    """Build a part of a model with its stored weights, whose names have a prefix.

    They are first compared with the part on the meta device, which allocates no memory: in an altered file a size may
    be any number.

    Raises:
        UserError: weights are missing, or have other shapes.
    """
    stored = _part_of(state, prefix)
    with torch.device("meta"):
        expected = make()
    try:
        expected.load_state_dict(stored, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip().removesuffix(".")
        raise UserError(
            f"the weights in {path} do not fit its own configuration ({reason}); use another copy of it"
        ) from None
    part = make()
    part.load_state_dict(stored)
    return part


def _part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weights for name, weights in state.items() if name.startswith(prefix)}


def has_published_weights(encoder: Node) -> bool:
    """Return whether an encoder starts with the weights that its package publishes."""
    return str(encoder.arguments.get("weights", "hub")).startswith(("wheel:", "hub"))


def take_confidence(state: dict[str, Tensor], path: str) -> Confidence | None:
    """Remove the confidence from a state dict and return it, if there is one.

    Raises:
        UserError: it lacks a tensor, or has one of another shape or with values that no fit returns.
    """
    prefix = f"{CONFIDENCE}."
    stored = {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
    if not stored:
        return None
    match [tuple(stored[name].shape) for name in NAMES if name in stored]:
        case [(3,), (dim,), (rows, _), ()] if rows == dim and len(stored) == len(NAMES):
            confidence = Confidence(**stored)
            if confidence.curve.abs().max() <= CURVE_LIMIT:
                return confidence
    raise UserError(f"the confidence in {path} was altered, or is of another version; use another copy of it")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(local_device() if name == "auto" else name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ImportError):
        raise UserError(f"this machine has no device={name}; set it to {local_device()} or auto") from None
    return device


def save_model_folder(model: LoadedModel, folder: Path) -> None:
    """Write a model folder. It lacks the encoder's weights if they equal the published ones that its configuration
    names."""
    encoder, trained = model.module.encoder, model.metadata["encoder"]["weights_sha256"]
    is_published = has_published_weights(model.settings.encoder) and not encoder.tuned
    with_encoder = not is_published or state_hash(encoder.network.state_dict()) != trained
    state = model.module.state_dict()
    if model.confidence:
        state |= {f"{CONFIDENCE}.{name}": values.cpu() for name, values in model.confidence.state_dict().items()}
    write_model_folder(folder, model.metadata, state, with_encoder)


def load_models(
    paths: Sequence[str], device: str, decoding: Decoding, attention: InferenceAttentionSettings = TRAINED
) -> list[LoadedModel]:
    """Load checkpoints with one vocabulary.

    Raises:
        UserError: as `load_model`; or the vocabularies differ.
    """
    models = [load_model(path, device, decoding, attention) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if model.module.vocabulary.words != models[0].module.vocabulary.words:
            raise UserError(
                f"{path} and {paths[0]} have different vocabularies, and cannot be combined; "
                "give checkpoints that were trained on the same captions with the same vocabulary.size"
            )
    return models


def average(paths: Sequence[str]) -> dict[str, Any]:
    """Average the weights of models of one kind and size (model soups, Wortsman et al. 2022).

        theta = 1/N sum_k theta_k

    Configuration and vocabulary are those of the first model. Weights that are equal in all models, such as those of a
    frozen encoder, stay the same bit for bit. The mean of models from different initial weights is useless.

    Returns:
        The content of the averaged checkpoint.

    Raises:
        UserError: a checkpoint is missing or damaged, or vocabularies, model settings or preprocessing differ.
    """
    models = load_models(paths, "cpu", BeamSearch())
    first, states = models[0], [model.module.state_dict() for model in models]
    kinds = list(map(_kind, models))
    for path, model, kind in zip(paths, models, kinds, strict=True):
        differences = model_differences(first.record, model.record)
        if differences or kind != kinds[0]:
            raise UserError(
                f"{path} cannot be averaged with {paths[0]}: "
                f"it was trained with {listed(differences, shown=6) or 'another encoder'}; "
                "give checkpoints of one model, or use them as an ensemble, as in evaluate 'checkpoint=[...]' does"
            )
    mean = {name: _mean([state[name] for state in states]) for name in states[0]}
    first.module.load_state_dict(mean)
    is_new = first.module.encoder.describe()["weights_sha256"] != first.metadata["encoder"]["weights_sha256"]
    first.module.encoder.tuned = is_new or any(model.module.encoder.tuned for model in models)
    metadata = {
        **first.metadata,
        "choices": {**first.choices, "average_of": str(len(models))},
        "encoder": first.module.encoder.describe(),
        "averaged": [sha256(find_model(path)) for path in paths],
    }
    return {METADATA_KEY: metadata, "state_dict": mean}


def _kind(model: LoadedModel) -> tuple[dict[str, Any], dict[str, torch.Size]]:
    """Return what models must have in common: the settings that determine the regions, and the sizes of all weights."""
    encoder = model.module.encoder.describe()
    settings = {name: encoder[name] for name in encoder.keys() - {"weights_sha256", "tuned"}}
    return settings, {name: weights.shape for name, weights in model.module.state_dict().items()}


def _mean(weights: Sequence[Tensor]) -> Tensor:
    """Return the mean in double precision, or the first tensor if all are equal or integers."""
    first = weights[0]
    if not first.is_floating_point() or all(torch.equal(first, others) for others in weights):
        return first
    return torch.stack(list(weights)).double().mean(dim=0).to(first)


class InitialCheckpoint(NamedTuple):
    """A checkpoint that initializes the weights.

    Attributes:
        file: the checkpoint.
        metadata: its metadata.
        weights: its weights by name.
        differences: `setting=VALUE` for each of its settings that shapes the model and differs from this run's.
        confidence: its `Confidence`, if it has one.
    """

    file: Path
    metadata: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    differences: list[str]
    confidence: Confidence | None = None

    def vocabulary(self, settings: TrainSettings, dataset: Dataset) -> Vocabulary:
        """Return the checkpoint's vocabulary, with the words of the training captions if `init_vocabulary` says so.

        Raises:
            UserError: the tokenizer differs.
        """
        stored = self.metadata["config"]["tokenizer"]
        if stored != as_record(settings.tokenizer):
            stored_arguments = ", ".join(f"tokenizer.{name}={value}" for name, value in stored.items())
            raise UserError(f"{self.file} was trained with another tokenizer; give the same: {stored_arguments}")
        vocabulary = read_vocabulary(self.metadata, build(settings.tokenizer), self.file)
        if settings.init_vocabulary != "extended":
            return vocabulary
        if vocabulary.tokenizer.tokens is not None:
            raise UserError("init_vocabulary=extended adds words, and this tokenizer has parts of words; leave it out")
        return vocabulary.extended(build_vocabulary(settings.tokenizer, settings.vocabulary, dataset).words)

    def load_encoder(self, encoder: Encoder) -> None:
        """Load the checkpoint's encoder weights.

        Raises:
            UserError: network, grid or size differ.
        """
        description, stored = encoder.describe(), self.metadata["encoder"]
        if any(description[part] != stored[part] for part in description.keys() - {"weights_sha256", "tuned"}):
            raise self._mismatch()
        if weights := _part_of(self.weights, ENCODER):
            encoder.load_tuned(weights)
        elif description["weights_sha256"] != stored["weights_sha256"]:
            raise self._mismatch()

    def load_captioner(self, captioner: Captioner, vocabulary: Vocabulary) -> None:
        """Load the checkpoint's captioner weights.

        Args:
            vocabulary: that of the captioner, which begins with the checkpoint's words. New words get the weights of
                `<unk>`, which were learned from rare words, and equal shares of its probability.

        Raises:
            UserError: kind or size differ.
        """
        weights, num_known = _part_of(self.weights, "captioner."), len(self.metadata["vocabulary"])
        try:
            if num_new := len(vocabulary) - num_known:
                rows = torch.tensor([*range(num_known), *[UNK] * num_new])
                weights |= {name: weights[name][rows] for name in WORD_WEIGHTS if name in weights}
                # softmax: K logits that are less by log K than that of <unk> have its probability together
                weights[WORD_BIAS][num_known:] -= math.log(num_new)
            captioner.load_state_dict(weights)
        except (LookupError, RuntimeError):
            raise self._mismatch() from None

    def confidence_entry(self, encoder: Encoder) -> dict[str, Any]:
        """Return the entry of a checkpoint with the confidence, which knows images as a frozen encoder sees them."""
        return {CONFIDENCE: self.confidence.state_dict()} if self.confidence and not encoder.trainable else {}

    def _mismatch(self) -> UserError:
        differing = listed(self.differences, shown=6) or "another encoder"
        return UserError(f"{self.file} does not fit this model; it was trained with {differing}: give the same")


def find_initial_checkpoint(settings: TrainSettings) -> InitialCheckpoint | None:
    """Return the checkpoint that `init_from` names; None without one.

    Raises:
        UserError: the file is missing, damaged or foreign, or names targets outside this project.
    """
    if settings.init_from is None:
        return None
    file = find_model(settings.init_from)
    metadata, weights = read_checkpoint(file)
    confidence = take_confidence(weights, settings.init_from)
    stored, record = metadata["config"], as_record(settings)
    _check_named(stored, file)
    check_targets([stored[part] for part in MODEL], file, find_targets(record))  # the source counts for these alone
    return InitialCheckpoint(file, metadata, weights, model_differences(record, stored), confidence)


def training_vocabulary(settings: TrainSettings, origin: InitialCheckpoint | None, dataset: Dataset) -> Vocabulary:
    """Return the vocabulary of a training: that of the checkpoint it starts from, or one of the training captions."""
    if origin:
        return origin.vocabulary(settings, dataset)
    return build_vocabulary(settings.tokenizer, settings.vocabulary, dataset)
