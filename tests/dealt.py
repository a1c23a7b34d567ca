"""Three images and their captions, and what Lightning is dealt of them."""

from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint
from torch import Tensor

from showattendtell.batches import CaptionData
from showattendtell.records import Batch, Caption, Dataset, Example, Part
from showattendtell.splits import ImageSource, Scene, View
from showattendtell.text.vocabulary import Vocabulary

CAPTIONS = ((("a", "dog"), ("one", "dog", "runs")), (("two", "cats"),), (("a", "man"), ("he", "sits"), ("old", "man")))
"""Of images 0, 1 and 2; the captions' numbers are 0 and 1, 2, and 3 to 5."""


def examples_of(folder: Path = Path()) -> list[Example]:
    return [
        Example(f"{image}.png", str(folder / f"{image}.png"), tuple(map(Caption, captions)))
        for image, captions in enumerate(CAPTIONS)
    ]


def vocabulary() -> Vocabulary:
    return Vocabulary.build([words for captions in CAPTIONS for words in captions], size=100)


def numbered(positions: list[int]) -> Tensor:
    """One region of width 1 that holds the image's position."""
    return torch.tensor(positions, dtype=torch.float).reshape(-1, 1, 1)


def source_of(examples: object, view: View = "plain") -> ImageSource:
    return numbered


def caption_data(examples: list[Example], **settings: Any) -> CaptionData:
    dataset = Dataset("three", {"train": tuple(examples), "val": tuple(examples[:2])})
    return CaptionData(dataset, vocabulary(), source_of, seed=3, **{"batch_size": 2, **settings})


Words = tuple[int, ...]


class Recorder(lightning.LightningModule):
    """Learns nothing; keeps the captions and images that Lightning hands it, by epoch.

    Args:
        interrupted: the step in which the user interrupts training.
    """

    def __init__(self, interrupted: int | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.interrupted = interrupted
        self.steps = 0
        self.trained: dict[int, list[list[Words]]] = {}
        self.validated: list[Words] = []
        self.scenes: list[str] = []

    def training_step(self, part: Part[Batch], index: int) -> None:
        if self.steps == self.interrupted:
            raise KeyboardInterrupt
        self.steps += 1
        own = [tuple(tokens.tolist()) for tokens in part.content.tokens] if part.share.weight else []
        self.trained.setdefault(self.current_epoch, []).append(own)

    def validation_step(self, batch: Batch | Scene, index: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch, Scene):
            self.scenes += batch.names
        else:
            self.validated += [tuple(tokens.tolist()) for tokens in batch.tokens]

    def configure_optimizers(self) -> None:
        return None


def trainer_of(folder: Path, epochs: int, *callbacks: Callback, **settings: Any) -> lightning.Trainer:
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **settings,
    )


def trained_by_lightning(tmp_path: Path, epochs: int, **settings: Any) -> Recorder:
    recorder = Recorder()
    trainer_of(tmp_path, epochs).fit(recorder, caption_data(examples_of(), **settings))
    return recorder


class Learner(Recorder):
    """Has a weight, without which Lightning does not train in several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
