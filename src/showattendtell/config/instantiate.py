"""Build objects from the nodes of a checked configuration."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.compose import to_plain
from showattendtell.config.validation import TARGET, find_targets
from showattendtell.data.augmentation import Augmentation
from showattendtell.data.tokenization import train_tokenizer
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.datamodules.datasets import ImageSourceFactory, check_cache, open_source
from showattendtell.errors import UserError, first_line
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.initialization import initialize_as_released
from showattendtell.runtime.files import cache_folder
from showattendtell.types import Dataset

Config = DictConfig  # a checked configuration, whose settings are attributes


def build(node: DictConfig, **objects: Any) -> Any:
    """Call the node's `_target_` with the node's settings and the objects that the code passes, and return the result.

    Raises:
        UserError: for a value that the target rejects, or a target that cannot be imported.
    """
    try:
        return _call(OmegaConf.to_container(node, resolve=True), objects)
    except (TypeError, ValueError) as error:
        raise UserError(f"{node._get_full_key('')}: {first_line(error)}") from error


def _call(node: Any, objects: dict[str, Any] | None = None) -> Any:
    """Build a node as plain data, and the nodes in it."""
    if isinstance(node, list):
        return list(map(_call, node))
    if not isinstance(node, Mapping):
        return node
    arguments = {name: _call(value) for name, value in node.items() if name not in (TARGET, "_partial_")}
    arguments |= objects or {}
    if TARGET not in node:
        return arguments
    function = locate(node[TARGET])
    return partial(function, **arguments) if node.get("_partial_") else function(**arguments)


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


def import_own_classes(config: Mapping[str, Any]) -> None:
    """Import the targets of a configuration that are not of this package, so that an error in their modules is
    reported before data are read."""
    for target in find_targets(to_plain(config)):
        if not target.startswith("showattendtell."):
            locate(target)


def build_vocabulary(config: Mapping[str, Any], dataset: Dataset) -> Vocabulary:
    """Build the tokenizer and the vocabulary of a training configuration from the training captions."""
    tokenizer = build(config["tokenizer"])
    captions = train_tokenizer(tokenizer, dataset, config["vocabulary"]["size"])
    vocabulary: Vocabulary = build(config["vocabulary"], captions=captions, tokenizer=tokenizer)
    return vocabulary


def build_captioner(config: Mapping[str, Any], region_dim: int, vocabulary_size: int) -> Captioner:
    """Build the attention and decoder of a training configuration, with initial weights.

    This also makes the CPU flush subnormal numbers to 0: the alphas of a saturated softmax are subnormal, and would
    make each step several times slower.
    """
    torch.set_flush_denormal(True)
    decoder = build(config["decoder"], vocabulary_size=vocabulary_size, region_dim=region_dim)
    attention = build(config["attention"], region_dim=region_dim, hidden_dim=decoder.hidden_dim)
    try:
        captioner = Captioner(attention, decoder)
    except ValueError as error:
        raise UserError(str(error)) from None
    if config.get("weight_init") == "released":
        initialize_as_released(captioner)
    return captioner


def build_dataset(config: DictConfig) -> Dataset:
    """Read the data set of a training configuration. Raise `UserError` if it has no training or validation images."""
    dataset: Dataset = build(config.dataset)
    for split in ("train", "val"):
        dataset.split(split)
    return dataset


def build_source(config: DictConfig, dataset: Dataset, encoder: Encoder) -> tuple[ImageSourceFactory, Dataset]:
    """Return the source of a training configuration's images, and the data set without the images that cannot be read.

    See `open_source`.
    """
    extraction, folder = build(config.features), cache_folder(config.cache) / "features"
    data = config.get("data", {})
    views = 1 if encoder.trainable else extraction.views
    check_cache(data.get("cache_on_device"), data.get("num_workers"), views)
    augmentation, skips = build(config.augment, seed=config.seed), config.dataset.get("skip_unreadable", False)
    return open_source(dataset, encoder, folder, extraction, augmentation, skips)


def find_source(
    config: DictConfig, dataset: Dataset, encoder: Encoder, split: str
) -> tuple[ImageSourceFactory, Dataset]:
    """Return the source of the images of a split, and the data set without the images that cannot be read.

    Like `build_source`, except that pixels are read if the feature cache has no finished store, and that only the
    images of the split are checked.
    """
    extraction, folder = build(config.features), cache_folder(config.cache) / "features"
    skips = config.dataset.get("skip_unreadable", False)
    return open_source(dataset, encoder, folder, extraction, Augmentation(config.seed), skips, split)
