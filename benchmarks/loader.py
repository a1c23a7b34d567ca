"""Fraction of training time spent waiting for data, with stored features and the data module of `train`."""

import logging
import statistics
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as lightning
import torch
from pytorch_lightning.profilers import SimpleProfiler
from torch import Tensor

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import seconds_of
from benchmarks.sampler import BATCH_SIZE, CAPTIONS_PER_IMAGE, draw_lengths
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import GridSource
from showattendtell.features.store import (
    EncodedBatch,
    FeatureStore,
    FileStamp,
    StorePlan,
    write_shards,
    write_store,
)
from showattendtell.images.reading import Preprocessing
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.text.vocabulary import SPECIAL, Vocabulary
from showattendtell.types import Batch, Caption, Dataset, Example, ShardedBatch

IMAGES = 2000
"""400 MB of features."""
ROWS, COLUMNS, REGION_DIM, VOCABULARY_SIZE, WIDTH = 14, 14, 512, 10_000, 512
STEPS = 12
PREPROCESSING = Preprocessing(224, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Steps without a GPU; with one, a whole epoch."""


class Module(lightning.LightningModule):
    """Soft attention, trained with Adam."""

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
    """Seconds to read a batch and of a training step; fraction of the epoch spent waiting for batches."""

    reading: float
    step: float
    fraction: float


def make_dataset(vocabulary: Vocabulary) -> Dataset:
    """Return a data set with caption lengths as in Flickr8k."""
    words, lengths = vocabulary.words[len(SPECIAL) :], draw_lengths(IMAGES * CAPTIONS_PER_IMAGE)
    examples = [
        Example(str(image), "", tuple(Caption(words[image : image + length - 1]) for length in own))
        for image, own in enumerate(lengths.reshape(IMAGES, CAPTIONS_PER_IMAGE).tolist())
    ]
    return Dataset("synthetic", {"train": tuple(examples), "val": tuple(examples[:1])})


def make_store(path: Path, images: Sequence[str]) -> FeatureStore:
    """Write a feature cache of random numbers."""
    settings = {"grid": [ROWS, COLUMNS], "dim": REGION_DIM, "dtype": "float16", "views": 1}
    plan = StorePlan("synthetic", settings, images)

    def encode(batches: Sequence[Sequence[str]]) -> Iterator[EncodedBatch]:
        for names in batches:
            stamps = dict.fromkeys(names, FileStamp(0, 0))
            yield EncodedBatch(stamps, torch.rand(len(names), 1, ROWS * COLUMNS, REGION_DIM), {})

    write_store(path, plan, partial(write_shards, path, plan, encode))
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
    reading = seconds_of(lambda: data.train_captions[captions])
    trainer.fit(Module(), data)
    seconds = profiler.recorded_durations
    [epoch] = seconds["run_training_epoch"]
    steps, waits = seconds["run_training_batch"], seconds["[_TrainingEpochLoop].train_dataloader_next"]
    return Waiting(reading, statistics.median(steps), sum(waits) / epoch)


def measure(options: Namespace) -> Results:
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
            lambda examples: GridSource(store, examples, PREPROCESSING),
            BATCH_SIZE,
            seed=0,
        )
        waiting = train(data, Path(folder))
    figures = [
        Figure("fraction of an epoch spent waiting for data", 100 * waiting.fraction, "%", "lower"),
        Figure("time to read a batch", 1000 * waiting.reading, "ms", "lower"),
        Figure("training step", 1000 * waiting.step, "ms", "lower"),
    ]
    return Results([], figures)


if __name__ == "__main__":
    main(measure)
