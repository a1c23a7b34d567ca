"""Build the objects that checked settings describe."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from showattendtell.config.command_line import read_option
from showattendtell.config.compose import as_node
from showattendtell.config.schemas import StoredSettings, TrainSettings
from showattendtell.config.validation import TARGET, USER_ERRORS, find_targets, sentence, to_plain
from showattendtell.datamodules.datasets import ImageSourceFactory, check_cache, open_source
from showattendtell.errors import UserError, first_line
from showattendtell.images.augmentation import Augmentation
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.initialization import initialize_as_released
from showattendtell.runtime.distributed import ReportedElsewhere
from showattendtell.runtime.files import cache_folder
from showattendtell.settings import Node
from showattendtell.text.vocabulary import Vocabulary, train_tokenizer
from showattendtell.types import Dataset

REFUSALS = (TypeError, ValueError, RuntimeError)
"""Exceptions whose messages are sentences without the name of the class."""


def build(node: Node, **objects: Any) -> Any:
    """Call the node's target with its arguments and the objects that the code passes, and return the result.

    The arguments are data: unlike Hydra's `instantiate`, this resolves no `${...}` in the texts of stored settings.

    Raises:
        UserError: for a value that the target rejects, or a target that cannot be imported.
    """
    try:
        return _call({TARGET: node.target, **node.arguments}, **objects)
    except (*USER_ERRORS, ReportedElsewhere):
        raise
    except Exception as error:  # of whatever class the target, or a library that it calls, refuses a value with
        reason = first_line(error) if isinstance(error, REFUSALS) else sentence(error)
        raise UserError(f"{node.path}: {reason}" if node.path else reason) from error


def _call(value: Any, /, **objects: Any) -> Any:
    """Return plain data in which the parts are replaced by their objects. The outer one also gets `objects`."""
    if isinstance(value, list):
        return list(map(_call, value))
    if not isinstance(value, Mapping):
        return value
    arguments = {name: _call(inner) for name, inner in value.items() if name not in (TARGET, "_partial_")}
    if TARGET not in value:
        return arguments
    function = partial(locate(value[TARGET]), **{**arguments, **objects})
    return function if value.get("_partial_") else function()


def build_option(group: str, option: str, **objects: Any) -> Any:
    """Build an option of a config group of the core or of an extension."""
    return build(as_node(to_plain(read_option(group, option))), **objects)


def locate(target: str) -> Callable[..., Any]:
    """Import a class or function.

    Raises:
        UserError: with the error of its module and its line.
    """
    first, *names = target.split(".")
    try:
        found: Any = import_module(first)
        for i, name in enumerate(names, start=1):
            found = getattr(found, name) if hasattr(found, name) else import_module(".".join([first, *names[:i]]))
        return found
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        location = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}"
        raise UserError(
            f"{target} cannot be imported ({type(error).__name__}: {first_line(error)}{location})"
        ) from error


def import_own_classes(record: Mapping[str, Any]) -> None:
    """Import the targets of a record of settings that are not of this package, so that an error in their modules is
    reported before data are read."""
    for target in find_targets(record):
        if not target.startswith("showattendtell."):
            locate(target)


def build_vocabulary(tokenizer: Node, vocabulary: Node, dataset: Dataset) -> Vocabulary:
    """Build the tokenizer, and the vocabulary of the training captions."""
    cutter = build(tokenizer)
    captions = train_tokenizer(cutter, dataset, vocabulary.arguments["size"])
    built: Vocabulary = build(vocabulary, captions=captions, tokenizer=cutter)
    return built


def build_captioner(
    attention: Node, decoder: Node, region_dim: int, vocabulary_size: int, weight_init: str = "default"
) -> Captioner:
    """Build the attention and the decoder of a model, with initial weights.

    This also makes the CPU flush subnormal numbers to 0: the alphas of a saturated softmax are subnormal, and would
    make each step several times slower.
    """
    torch.set_flush_denormal(True)
    built = build(decoder, vocabulary_size=vocabulary_size, region_dim=region_dim)
    try:
        captioner = Captioner(build(attention, region_dim=region_dim, hidden_dim=built.hidden_dim), built)
    except ValueError as error:
        raise UserError(str(error)) from None
    if weight_init == "released":
        initialize_as_released(captioner)
    return captioner


def build_dataset(node: Node) -> Dataset:
    """Read the data set of a training. Raise `UserError` if it has no training or validation images."""
    dataset: Dataset = build(node)
    for split in ("train", "val"):
        dataset.split(split)
    return dataset


def build_source(settings: TrainSettings, dataset: Dataset, encoder: Encoder) -> tuple[ImageSourceFactory, Dataset]:
    """Return the source of the images of a training, and the data set without the images that cannot be read.

    See `open_source`.
    """
    extraction, folder = build(settings.features), cache_folder(settings.cache) / "features"
    views, data = 1 if encoder.trainable else extraction.views, settings.data.arguments
    check_cache(data.get("cache_on_device"), data.get("num_workers"), views)
    augmentation = build(settings.augment, seed=settings.seed)
    skips = settings.dataset.arguments.get("skip_unreadable", False)
    return open_source(dataset, encoder, folder, extraction, augmentation, skips)


def find_source(
    stored: StoredSettings, dataset: Dataset, encoder: Encoder, split: str
) -> tuple[ImageSourceFactory, Dataset]:
    """Return the source of the images of a split, and the data set without the images that cannot be read.

    Like `build_source`, except that pixels are read if the feature cache has no finished store, and that only the
    images of the split are checked.
    """
    assert stored.dataset
    assert stored.features
    extraction, folder = build(stored.features), cache_folder(stored.cache) / "features"
    skips = stored.dataset.arguments.get("skip_unreadable", False)
    return open_source(dataset, encoder, folder, extraction, Augmentation(stored.seed), skips, split)
