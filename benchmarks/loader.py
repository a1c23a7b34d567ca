"""What part of training is waiting for data: an epoch on stored grids, as `train` has it."""

import logging
import statistics
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as lightning
import torch
from pytorch_lightning.profilers import SimpleProfiler
from rich.table import Table
from torch import Tensor

from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from benchmarks.sampler import BATCH_SIZE, CAPTIONS_PER_IMAGE, draw_lengths
from showattendtell.data.images import Preprocessing
from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import GridSource
from showattendtell.features.store import EncodedBatch, FeatureStore, StorePlan
from showattendtell.features.writer import write_shards, write_store
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.types import Batch, Caption, Dataset, Example, ShardedBatch

IMAGES = 2000
"""400 MB of grids; a batch has 64 of them at random."""
ROWS, COLUMNS, REGION_DIM, VOCABULARY_SIZE, WIDTH = 14, 14, 512, 10_000, 512
STEPS = 12
PREPROCESSING = Preprocessing(224, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Of the epoch, where there is no GPU."""


class Learner(lightning.LightningModule):
    """The paper's soft attention, trained by Adam."""

    def __init__(self) -> None:
        super().__init__()
        attention, decoder = SoftAttention(REGION_DIM, WIDTH), LSTMDecoder(VOCABULARY_SIZE, REGION_DIM, WIDTH, WIDTH)
        self.captioner, self.loss = Captioner(attention, decoder), SoftLoss()

    def training_step(self, part: ShardedBatch[Batch], index: int) -> Tensor:
        batch = part.content
        return total(self.loss(self.captioner, batch.images.float(), batch.image_index, batch.tokens).terms)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Waiting(NamedTuple):
    """Seconds: to read a batch, of a training step, of waiting for its batch; and the share of waiting in the epoch."""

    reading: float
    step: float
    waiting: float
    share: float


def make_dataset(vocabulary: Vocabulary) -> Dataset:
    """Captions as long as Flickr8k's."""
    words, lengths = vocabulary.words[len(SPECIAL) :], draw_lengths(IMAGES * CAPTIONS_PER_IMAGE)
    examples = [
        Example(str(image), "", tuple(Caption(words[image : image + length - 1]) for length in own))
        for image, own in enumerate(lengths.reshape(IMAGES, CAPTIONS_PER_IMAGE).tolist())
    ]
    return Dataset("synthetic", {"train": tuple(examples), "val": tuple(examples[:1])})


def make_store(path: Path, images: Sequence[str]) -> FeatureStore:
    """A store of random grids."""
    settings = {"grid": [ROWS, COLUMNS], "dim": REGION_DIM, "dtype": "float16", "views": 1}
    plan = StorePlan("synthetic", settings, images)

    def encode(batches: Sequence[Sequence[str]]) -> Iterator[EncodedBatch]:
        for names in batches:
            yield EncodedBatch(names, torch.rand(len(names), 1, ROWS * COLUMNS, REGION_DIM), {})

    write_store(path, plan, lambda: write_shards(path, plan, encode))
    return FeatureStore(path)


def train(data: CaptionDataModule, folder: Path) -> Waiting:
    profiler = SimpleProfiler()
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_epochs=1,
        limit_train_batches=1.0 if torch.cuda.is_available() else STEPS,
        limit_val_batches=0,
        profiler=profiler,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    captions = next(iter(data.train_batches)).content
    started = time.perf_counter()
    data.train_captions[captions]
    reading = time.perf_counter() - started
    trainer.fit(Learner(), data)
    seconds = profiler.recorded_durations
    [epoch] = seconds["run_training_epoch"]
    steps, waits = seconds["run_training_batch"], seconds["[_TrainingEpochLoop].train_dataloader_next"]
    return Waiting(reading, statistics.median(steps), sum(waits) / len(steps), sum(waits) / epoch)


def measure(options: Namespace) -> Measured:
    torch.manual_seed(0)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(VOCABULARY_SIZE - len(SPECIAL)))])
    dataset = make_dataset(vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store", [example.image for example in dataset.split("train")])
        data = CaptionDataModule(
            dataset,
            vocabulary,
            lambda examples, view="plain": GridSource(store, examples, PREPROCESSING),
            BATCH_SIZE,
            seed=0,
        )
        waiting = train(data, Path(folder))
    figures = [
        Figure("part of an epoch that waits for data", 100 * waiting.share, "%", "lower"),
        Figure("reading a batch", 1000 * waiting.reading, "ms", "lower"),
        Figure("a step", 1000 * waiting.step, "ms", "lower"),
    ]
    return Measured([make_table(waiting)], figures)


def make_table(waiting: Waiting) -> Table:
    table = Table(title=f"waiting for {BATCH_SIZE} captions a step, their grids in a store", title_justify="left")
    for column in ("reading a batch, ms", "a step, ms", "waiting for a batch, ms", "waiting, %"):
        table.add_column(column, justify="right")
    milliseconds = [f"{1000 * seconds:.1f}" for seconds in waiting[:3]]
    table.add_row(*milliseconds, f"{100 * waiting.share:.1f}")
    return table


if __name__ == "__main__":
    main(measure)
