from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback
from three_images import (
    CAPTIONS,
    Learner,
    caption_data,
    examples_of,
    numbered,
    trained_by_lightning,
    trainer_of,
    vocabulary,
)

from showattendtell.datamodules.datamodule import BUCKETINGS, BucketingName
from showattendtell.datamodules.datasets import CaptionDataset
from showattendtell.datamodules.samplers import WholeBatchSampler, read_ahead


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lightning_deals_every_caption_once_an_epoch_in_another_order(tmp_path: Path, num_workers: int):
    recorder = trained_by_lightning(tmp_path, epochs=4, num_workers=num_workers)
    words = vocabulary()
    every = sorted(tuple(words.encode(said)) for captions in CAPTIONS for said in captions)
    for epoch in recorder.trained.values():
        assert sorted(caption for batch in epoch for caption in batch) == every
    assert len({repr(epoch) for epoch in recorder.trained.values()}) > 1


@pytest.mark.filterwarnings("ignore")
def test_lightning_validates_on_captions_and_on_images(tmp_path: Path):
    recorder = trained_by_lightning(tmp_path, epochs=1)
    words = vocabulary()
    assert sorted(recorder.validated) == sorted(tuple(words.encode(said)) for said in (*CAPTIONS[0], *CAPTIONS[1]))
    assert recorder.scenes == ["0.png", "1.png"]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("bucketing", BUCKETINGS)
def test_the_data_module_trains_on_the_batches_requested(bucketing: BucketingName, together: bool):
    data = caption_data(examples_of(), bucketing=bucketing, group_by_image=together, batch_size=2)
    captions = data.train_captions
    buckets = BUCKETINGS[bucketing](captions.tokens.lengths, captions.image_index, 2, together)
    expected = [captions[batch] for batch in WholeBatchSampler(buckets, 3)]
    for part, other in zip(data.train_dataloader(), expected, strict=True):
        assert part.shard == (1, len(other.tokens))
        for tensor, same in zip(part.content, other, strict=True):
            torch.testing.assert_close(tensor, same)


class Report(Callback):
    """Writes down what each of several processes has trained and validated on."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        content = {"trained": module.trained, "validated": module.validated}
        torch.save(content, self.folder / f"{trainer.global_rank}.pt")


@pytest.mark.filterwarnings("ignore")
def test_processes_share_every_batch_and_have_as_many_of_them(tmp_path: Path):
    """A batch of one process is four times as large, and some have none of a batch's one to three captions of a length;
    nobody validates on what another one does."""
    alone = trained_by_lightning(tmp_path, epochs=2, batch_size=4)
    trainer = trainer_of(tmp_path, 2, Report(tmp_path), devices=4, strategy="ddp_fork")
    trainer.fit(Learner(), caption_data(examples_of(), batch_size=1))
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(4)]
    for epoch, batches in alone.trained.items():
        shares = [part["trained"][epoch] for part in parts]
        assert [[caption for part in step for caption in part] for step in zip(*shares, strict=True)] == batches
    validated = [caption for part in parts for caption in part["validated"]]
    assert sorted(validated) == sorted(alone.validated)


def test_items_read_ahead_are_the_same_and_no_more_than_requested():
    asked = []

    def items() -> Iterator[int]:
        for item in range(1, 8):
            asked.append(item)
            yield item

    reading = read_ahead(items())
    assert asked == []
    assert next(reading) == 1
    reading.close()
    assert asked in ([1], [1, 2], [1, 2, 3])
    assert list(read_ahead(items())) == list(range(1, 8))
    assert list(read_ahead(iter(()))) == []


def test_grids_that_are_held_are_read_once_and_are_the_same():
    asked: list[int] = []

    def read(positions: list[int], draw: object = None) -> torch.Tensor:
        asked.extend(positions)
        return numbered(positions)

    captions = CaptionDataset(examples_of(), vocabulary(), read)
    wanted = [[0, 4], [5, 2, 1]]
    before = [captions[batch] for batch in wanted]
    captions.cache_on(torch.device("cpu"))
    asked.clear()
    for batch, expected in zip(wanted, before, strict=True):
        for part, same in zip(captions[batch], expected, strict=True):
            torch.testing.assert_close(part, same)
    assert not asked
