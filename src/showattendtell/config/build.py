"""From the nodes of a checked configuration to the things they describe."""

import copy
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from showattendtell.config.check import TARGET, find_targets
from showattendtell.config.compose import config_folder
from showattendtell.data.augment import Augmentation
from showattendtell.data.unreadable import drop_unreadable
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.extract import feature_path, open_features
from showattendtell.features.layout import is_finished
from showattendtell.features.store import FeatureStore
from showattendtell.model.captioner import Captioner
from showattendtell.model.initial import initialise_as_released
from showattendtell.records import Dataset, Example
from showattendtell.splits import ImageSource, Source, View, grid_source, pixel_source

TRUST = "SHOWATTENDTELL_TRUST"
"""The environment variable that names packages or targets of the user's own, separated by commas."""


def trusted_targets() -> list[str]:
    """What a `_target_` may name whoever wrote it: that which conf/ names, and what the user trusts; `package.*` stands
    for all in a package.

    A checkpoint's configuration comes from strangers, and must not run what it likes.
    """
    own = [name.strip() for name in os.environ.get(TRUST, "").split(",") if name.strip()]
    return [*_targets_in_conf(), *own, *(f"{name}.*" for name in own)]


def foreign_targets(node: Any) -> list[str]:
    """The targets in a configuration as plain data that are not trusted."""
    trusted = trusted_targets()
    return [target for target in find_targets(node) if not any(fnmatchcase(target, name) for name in trusted)]


@cache
def _targets_in_conf() -> list[str]:
    files = Path(config_folder()).rglob("*.yaml")
    named = (re.findall(rf"^ *{TARGET}: *(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE) for file in files)
    return sorted(chain.from_iterable(named))


def build(node: DictConfig, **objects: Any) -> Any:
    """What the node's `_target_` makes of the node's settings and of the objects that only the code has.

    Raises `UserError` for a target that neither is trusted nor was named on the command line, for a setting that the
    code gives, and for a value that the target refuses.
    """
    for name in objects.keys() & node.keys():
        raise UserError(f"{node._get_full_key(name)} is set by the code; leave it out")
    try:
        return instantiate(node, _partial_=True, _convert_="all", _execution_whitelist_=trusted_targets())(**objects)
    except (InstantiationException, ValueError) as fault:
        raise UserError(f"{node._get_full_key('')}: {str(fault).strip().splitlines()[0]}") from None


def build_captioner(config: DictConfig, region_dim: int, vocabulary_size: int) -> Captioner:
    """The attention and decoder of a training configuration, with first weights.

    From here on the processor takes subnormal numbers for 0: the alphas of a saturated softmax are such, and would make
    each step several times slower.
    """
    torch.set_flush_denormal(True)
    decoder = build(config.decoder, vocabulary_size=vocabulary_size, region_dim=region_dim)
    attention = build(config.attention, region_dim=region_dim, hidden_dim=decoder.hidden_dim)
    try:
        captioner = Captioner(attention, decoder)
    except ValueError as fault:
        raise UserError(str(fault)) from None
    if config.get("initial_weights") == "released":
        initialise_as_released(captioner)
    return captioner


def build_source(config: DictConfig, dataset: Dataset, encoder: Encoder) -> tuple[Source, Dataset]:
    """Where the model's images come from, and the data set less the images that cannot be read.

    A frozen encoder's grids are stored once and read from there; one that is trained gets pixels, of the training
    images as `augment` says. Where the store has several views of an image, training draws one for each batch.
    """
    augmentation = build(config.augment, seed=config.seed)
    if encoder.trainable:
        return _pixels(encoder, augmentation), _readable(config, dataset, ["train", "val"])
    if augmentation:
        raise UserError(
            "augment changes what a trained encoder sees; set encoder.trainable=true, or store features.views=2"
        )
    store, readable = _open_store(config, dataset, encoder)
    if store.views > 1 and config.data.get("resident"):
        raise UserError("data.resident=true keeps one view of each image; leave it out with features.views")
    return _grids(store, encoder, config.seed), readable


def find_source(config: DictConfig, dataset: Dataset, encoder: Encoder, split: str) -> tuple[Source, Dataset]:
    """As `build_source`, but where there is no store yet it gives pixels as they are instead of making one for every
    split; of the images only the split's are then tried."""
    if encoder.trainable or not is_finished(_store_path(config, dataset, encoder)):
        return _pixels(encoder), _readable(config, dataset, [split])
    store, readable = _open_store(config, dataset, encoder)
    return _grids(store, encoder, config.seed), readable


def _pixels(encoder: Encoder, augmentation: Augmentation | None = None) -> Source:
    def source(examples: Sequence[Example], view: View = "plain") -> ImageSource:
        return pixel_source(encoder.preprocessing, examples, view, augmentation)

    return source


def _grids(store: FeatureStore, encoder: Encoder, seed: int) -> Source:
    """Mirror images are read as pixels where the store has none."""

    def source(examples: Sequence[Example], view: View = "plain") -> ImageSource:
        if view == "mirrored" and store.views == 1:
            return pixel_source(encoder.preprocessing, examples, view)
        return grid_source(store, examples, view, seed)

    return source


def settled(config: DictConfig, **changes: Any) -> DictConfig:
    """A stored configuration with the changes that are not null."""
    merged = copy.deepcopy(config)
    for name, change in changes.items():
        if isinstance(change, DictConfig):
            merged[name] = settled(merged[name], **{str(key): value for key, value in change.items() if key != TARGET})
        elif change is not None:
            merged[name] = change
    return merged


def _open_store(config: DictConfig, dataset: Dataset, encoder: Encoder) -> tuple[FeatureStore, Dataset]:
    path = _store_path(config, dataset, encoder)
    return open_features(dataset, encoder, path, _skips_unreadable(config), build(config.features))


def _store_path(config: DictConfig, dataset: Dataset, encoder: Encoder) -> Path:
    return feature_path(Path(config.cache).expanduser() / "features", dataset, encoder, build(config.features))


def _readable(config: DictConfig, dataset: Dataset, splits: Sequence[str]) -> Dataset:
    return drop_unreadable(dataset, splits) if _skips_unreadable(config) else dataset


def _skips_unreadable(config: DictConfig) -> bool:
    return config.dataset.get("skip_unreadable", False)
