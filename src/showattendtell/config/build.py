"""From the nodes of a checked configuration to the things they describe."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from showattendtell.batches import ImageSource, grid_source, pixel_source
from showattendtell.config.check import TARGET
from showattendtell.encoder import Encoder
from showattendtell.features.extract import feature_path, open_features
from showattendtell.model.captioner import Captioner
from showattendtell.records import Dataset, Example

TRUSTED = ["showattendtell.*", "torch.optim.*", "pytorch_lightning.*"]
"""What a `_target_` may name: a checkpoint's configuration comes from strangers, and must not run what it likes."""


def build(node: DictConfig, **objects: Any) -> Any:
    """What the node's `_target_` makes of the node's settings and of the objects that only the code has."""
    return instantiate(node, _partial_=True, _convert_="all", _execution_whitelist_=TRUSTED)(**objects)


def build_captioner(config: DictConfig, region_dim: int, vocabulary_size: int) -> Captioner:
    decoder = build(config.decoder, vocabulary_size=vocabulary_size, region_dim=region_dim)
    return Captioner(build(config.attention, region_dim=region_dim, hidden_dim=decoder.hidden_dim), decoder)


def build_source(
    config: DictConfig, dataset: Dataset, encoder: Encoder
) -> tuple[Callable[[Sequence[Example]], ImageSource], Dataset]:
    """Where the model's images come from, and the data set less the images that cannot be read.

    A frozen encoder's grids are stored once and read from there; one that is trained gets pixels.
    """
    if encoder.trainable:
        return lambda examples: pixel_source(encoder.preprocessing, examples), dataset
    store, readable = open_features(dataset, encoder, _store_path(config, dataset, encoder), _skips_unreadable(config))
    return lambda examples: grid_source(store, examples), readable


def find_source(
    config: DictConfig, dataset: Dataset, encoder: Encoder
) -> tuple[Callable[[Sequence[Example]], ImageSource], Dataset]:
    """As `build_source`, but where there is no store yet it gives pixels instead of making one for every split."""
    if encoder.trainable or not _store_path(config, dataset, encoder).exists():
        return lambda examples: pixel_source(encoder.preprocessing, examples), dataset
    return build_source(config, dataset, encoder)


def settled(config: DictConfig, **changes: Any) -> DictConfig:
    """A stored configuration with the changes that are not null."""
    merged = copy.deepcopy(config)
    for name, change in changes.items():
        if isinstance(change, DictConfig):
            merged[name] = settled(merged[name], **{str(key): value for key, value in change.items() if key != TARGET})
        elif change is not None:
            merged[name] = change
    return merged


def _store_path(config: DictConfig, dataset: Dataset, encoder: Encoder) -> Path:
    return feature_path(Path(config.cache).expanduser() / "features", dataset, encoder)


def _skips_unreadable(config: DictConfig) -> bool:
    return config.dataset.get("skip_unreadable", False)
