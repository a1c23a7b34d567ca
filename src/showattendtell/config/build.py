"""From the nodes of a checked configuration to the things they describe."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from showattendtell.batches import ImageSource, grid_source, pixel_source
from showattendtell.config.check import TARGET
from showattendtell.config.entry import config_folder
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.extract import feature_path, open_features
from showattendtell.model.captioner import Captioner
from showattendtell.records import Dataset, Example


@cache
def trusted_targets() -> list[str]:
    """What a `_target_` may name: that which conf/ names.

    A checkpoint's configuration comes from strangers, and must not run what it likes.
    """
    files = Path(config_folder()).rglob("*.yaml")
    return sorted({target for file in files for target in find_targets(OmegaConf.to_container(OmegaConf.load(file)))})


def find_targets(node: Any) -> Iterator[str]:
    """Every `_target_` in a configuration as plain data."""
    if isinstance(node, Mapping):
        yield from ([str(node[TARGET])] if TARGET in node else [])
        yield from (target for inner in node.values() for target in find_targets(inner))


def build(node: DictConfig, **objects: Any) -> Any:
    """What the node's `_target_` makes of the node's settings and of the objects that only the code has.

    Raises `UserError` for a target that is not trusted and for a value that the target refuses.
    """
    try:
        return instantiate(node, _partial_=True, _convert_="all", _execution_whitelist_=trusted_targets())(**objects)
    except (InstantiationException, MisconfigurationException, ValueError) as fault:
        raise UserError(f"{node._get_full_key('')}: {str(fault).strip().splitlines()[0]}") from None


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
