import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from grid_stores import NAMES, SETTINGS, Encoding, damage, random_grids, write

from showattendtell.errors import UserError
from showattendtell.features.store import (
    FeatureStore,
    StoredDtype,
    check_same_settings,
    grid_type,
    pack,
    unpack,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "new folder" / "grids"
    write(folder)
    return folder


def test_what_is_written_is_read_back_to_the_precision_of_fp16(path: Path):
    store = FeatureStore(path)
    assert torch.equal(store[store.rows(NAMES)], random_grids(NAMES)[:, 0].half())
    chosen = [NAMES[i] for i in (207, 2, 129, 130, 207)]
    assert torch.equal(store[store.rows(chosen)], random_grids(chosen)[:, 0].half())
    assert (len(store), store.views, store.skipped) == (300, 2, {})
    assert store[torch.tensor([], dtype=torch.long)].shape == (0, 6, 5)


def test_each_image_of_a_batch_has_the_view_that_is_required(path: Path):
    store = FeatureStore(path)
    views = torch.randint(2, (300,), generator=torch.Generator().manual_seed(0))
    expected = random_grids(NAMES)[torch.arange(300), views].half()
    assert torch.equal(store.read(store.rows(NAMES), views), expected)


def test_numpy_reads_the_shards(path: Path):
    shards = [np.load(path / f"0000{number}.npy", mmap_mode="r") for number in range(3)]
    assert [shard.shape for shard in shards] == [(130, 2, 6, 5), (130, 2, 6, 5), (40, 2, 6, 5)]
    assert np.array_equal(np.concatenate(shards), random_grids(NAMES).half().numpy())
    records = [json.loads((path / f"0000{number}.json").read_text()) for number in range(3)]
    assert [image for record in records for image in record["images"]] == NAMES


def test_other_processes_read_a_store_that_is_open_here(path: Path):
    store = FeatureStore(path)
    rows = store.rows(NAMES)
    expected = store[rows].sum(dim=(1, 2)).tolist()
    with multiprocessing.get_context("fork").Pool(2) as pool:  # to which the store is sent
        parts = pool.starmap(sums_of, [(store, rows[start::3]) for start in range(3)])
    assert [parts[row % 3][row // 3] for row in range(300)] == expected


def sums_of(store: FeatureStore, rows: torch.Tensor) -> list[float]:
    """Of each grid, read one by one."""
    return [store[row.unsqueeze(0)].sum().item() for row in rows]


def test_skipped_images_have_no_row_and_their_reason(tmp_path: Path):
    broken = [NAMES[0], NAMES[31], NAMES[299], *NAMES[132:170]]
    write(tmp_path / "grids", encode=Encoding(broken=broken))
    store = FeatureStore(tmp_path / "grids")
    present = [image for image in NAMES if image not in broken]
    assert store.skipped == {image: f"{image} is broken" for image in sorted(broken, key=NAMES.index)}
    assert torch.equal(store[store.rows(present)], random_grids(present)[:, 0].half())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "vgg19"}, r"network=tiny, this run has network=vgg19"),
        (
            {"preprocessing": {"crop": 8, "mean": [0.5, 0.5, 0.5]}},
            r"preprocessing.crop=4, .* has preprocessing.crop=8",
        ),
        ({"later": 1}, r"later=None, this run has later=1"),
    ],
)
def test_a_store_made_with_other_settings_is_refused_by_naming_the_difference(path: Path, change: dict, message: str):
    with pytest.raises(UserError, match=rf"grids was made with {message}; set cache to another folder"):
        check_same_settings(path, FeatureStore(path).settings, {**SETTINGS, **change})


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "manifest empty": ("store.json", lambda whole: b""),
    "manifest a list": ("store.json", lambda whole: b"[]"),
    "manifest not UTF-8": ("store.json", lambda whole: b"\xff\xfe"),
    "record cut": ("00001.json", lambda whole: whole[:-20]),
    "record without names": ("00001.json", lambda whole: b"{}"),
    "shard cut": ("00002.npy", lambda whole: whole[:-1]),
    "shard longer": ("00002.npy", lambda whole: whole + b"1"),
}


@pytest.mark.parametrize(("name", "change"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_is_reported(path: Path, name: str, change: Callable[[bytes], bytes]):
    damage(path / name, change)
    with pytest.raises(UserError, match=rf"grids is damaged \(.*{name}.+\); delete the folder; prepare and train"):
        FeatureStore(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "00002.npy: No such file or directory"),
        (lambda file: os.truncate(file, 1000), "00002.npy ends too early"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "00002.npy: it is a pipe or device"),
    ],
)
def test_grids_that_vanish_after_the_store_was_opened_are_reported(
    path: Path, change: Callable[[Path], object], message: str
):
    store = FeatureStore(path)
    assert store[store.rows(NAMES[:2])].shape == (2, 6, 5)
    change(path / "00002.npy")
    with pytest.raises(
        UserError, match=rf"grids is damaged \({message}\); delete the folder; prepare and train recreate it"
    ):
        store[store.rows(NAMES[299:])]


@pytest.mark.parametrize("name", ["00001.json", "00001.npy"])
def test_a_pipe_in_the_place_of_a_file_is_reported(path: Path, name: str):
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(UserError, match=rf"grids is damaged \({name}.+\); delete the folder"):
        FeatureStore(path)


def regions(scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(3, 4, 64, generator=generator) * torch.rand(3, 4, 1, generator=generator)


def through(dtype: StoredDtype, grids: torch.Tensor) -> torch.Tensor:
    """Packed and unpacked."""
    packed = pack(grids, dtype)
    record = grid_type({"grid": [2, 2], "dim": 64, "dtype": dtype})
    assert (packed.nbytes, len(packed)) == (3 * record.itemsize, 3)
    return unpack(packed)


def test_int8_by_hand():
    grid = torch.tensor([[[127.0, -127.0, 1.4, 0.6], [0.0, 2.54, -1.27, 0.011]]])
    packed = pack(grid, "int8")
    assert packed["q"].tolist() == [[[127, -127, 1, 1], [0, 127, -64, 1]]]
    assert packed["step"].tolist() == [[1.0, pytest.approx(0.02)]]
    expected = torch.tensor([[[127.0, -127.0, 1.0, 1.0], [0.0, 2.54, -1.28, 0.02]]])
    torch.testing.assert_close(unpack(packed), expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6])
def test_int8_is_off_by_half_a_step_of_the_region_at_most(scale: float):
    exact = regions(scale)
    steps = exact.abs().amax(dim=2, keepdim=True) / 127
    assert ((through("int8", exact) - exact).abs() <= 0.5001 * steps).all()
