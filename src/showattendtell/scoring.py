"""A trained model before the images that it is scored on: what the commands that score share."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf

from showattendtell.batches import ImageSource
from showattendtell.checkpoint import Restored, restore
from showattendtell.config.build import build, find_source, settled
from showattendtell.config.check import find_faults, raise_all
from showattendtell.decode import Decoding
from showattendtell.module import CaptioningModule
from showattendtell.records import Dataset, Example, fingerprint
from showattendtell.report.results import versions
from showattendtell.text.tokenize import TOKENIZER


class Trial(NamedTuple):
    """A restored model, and the images of a split of a data set as the model takes them."""

    checkpoint: str
    restored: Restored
    dataset: Dataset
    split: str
    images: ImageSource

    @property
    def module(self) -> CaptioningModule:
        return self.restored.module

    @property
    def examples(self) -> tuple[Example, ...]:
        return self.dataset.split(self.split)

    def title(self) -> str:
        return f"{self.dataset.name}, {len(self.examples)} images of {self.split}"

    def origin(self) -> dict[str, Any]:
        """What a result file says of where its figures come from."""
        return {
            "dataset": self.dataset.name,
            "split": self.split,
            "split_sha256": fingerprint(self.examples),
            "images": len(self.examples),
            "checkpoint": self.checkpoint,
            "checkpoint_sha256": self.restored.sha256,
            "seed": self.restored.config.seed,
            "attention": OmegaConf.to_container(self.restored.config.attention),
            "tokenizer": TOKENIZER,
            "versions": versions(),
        }

    def result_file(self, kind: str) -> Path:
        """`KIND-SPLIT.json` beside the checkpoint."""
        return Path(self.checkpoint).with_name(f"{kind}-{self.split}.json")


def open_trial(config: DictConfig, decoding: Decoding) -> Trial:
    """What a command's `checkpoint`, `split`, `dataset`, `attention`, `device` and `cache` name.

    Data set and attention are those of training, but for their settings that are not null.
    """
    torch.manual_seed(config.seed)
    restored = restore(config.checkpoint, config.device, decoding, config.attention)
    trained_with = settled(restored.config, dataset=config.dataset, cache=config.cache)
    raise_all(find_faults(trained_with))
    source, dataset = find_source(trained_with, build(trained_with.dataset), restored.module.encoder)
    images = source(dataset.split(config.split))
    return Trial(str(config.checkpoint), restored, dataset, config.split, images)
