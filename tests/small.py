"""A run of training that takes a second: made-up regions, few captions, a small captioner."""

from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as lightning
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from showattendtell.checkpoint import CARD
from showattendtell.config.build import build
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose
from showattendtell.config.differences import plain_settings
from showattendtell.module import CaptioningModule
from showattendtell.records import Caption, Dataset, Example
from showattendtell.splits import ImageSource, View
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.training import build_module, build_trainer, fit

SETTINGS = [
    *("trainer.accelerator=cpu", "trainer.max_epochs=2", "trainer.limit_train_batches=5", "data.batch_size=4"),
    *("attention.score.width=4", "decoder.embedding_dim=4", "decoder.hidden_dim=5", "decoder.dropout=0.5"),
    *("decoding.max_length=4", "optimizer.lr=0.01", "checkpoint_every=0"),
]
WORDS = ["a", "dog", "runs", "over", "the", "green", "grass", "to", "an", "old", "red", "ball"]
IMAGES, VALIDATED = 12, 4
REGIONS = torch.randn(IMAGES, 4, 3, generator=torch.Generator().manual_seed(0))


class Grids(nn.Module):
    """In the place of an encoder, where the regions are there already."""

    region_dim, learning_rate = 3, 0.0

    def locate(self, regions: Tensor) -> Tensor:
        return regions


def source(examples: Sequence[Example], view: View = "plain") -> ImageSource:
    return lambda positions: REGIONS[list(positions)]


def examples_of(images: range) -> tuple[Example, ...]:
    """Three captions an image, of 3 to 6 words."""

    def captions(image: int) -> tuple[Caption, ...]:
        return tuple(Caption(tuple(WORDS[image % 5 + n :][: 3 + (image + n) % 4])) for n in range(3))

    return tuple(Example(f"{image}.png", "", captions(image)) for image in images)


def small_config(*settings: str) -> DictConfig:
    config, _ = compose("train", check_command("train", [*SETTINGS, *settings]))
    OmegaConf.set_struct(config, False)
    config.pop("hydra")
    return config


def small_run(
    config: DictConfig,
    folder: Path,
    checkpoint: Path | None = None,
    callbacks: Sequence[Callback] = (),
    examples: Sequence[Example] = (),
) -> CaptioningModule:
    """What training in the folder ends with; a run that goes on begins with other weights and random states.

    Args:
        examples: to be trained on, instead of the usual ones.
    """
    folder.mkdir(exist_ok=True)
    lightning.seed_everything(config.seed if checkpoint is None else 999, verbose=False)
    train = tuple(examples) or examples_of(range(IMAGES))
    dataset = Dataset("small", {"train": train, "val": examples_of(range(VALIDATED))})
    vocabulary = Vocabulary.build([tuple(WORDS)], size=100)
    data = build(config.data, dataset=dataset, vocabulary=vocabulary, source=source, seed=config.seed)
    card = {CARD: {"format": 2, "config": plain_settings(config), "arguments": []}}
    module = build_module(config, Grids(), vocabulary, card, train)  # type: ignore[arg-type]
    trainer, _ = build_trainer(config, folder)
    trainer.callbacks = [*callbacks, *trainer.callbacks]
    fit(trainer, module, data, checkpoint)
    return module
