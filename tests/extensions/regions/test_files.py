"""Regions of detectors in the layouts of the repositories that publish them, written here by code of its own."""

import base64
import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from showattendtell.datamodules.datasets import open_source
from showattendtell.errors import UserError
from showattendtell.extensions.regions.encoder import RegionFeatures
from showattendtell.extensions.regions.files import LARGEST, image_ids
from showattendtell.features.extract import Extraction
from showattendtell.types import Caption, Dataset, Example

D = 6
SIZE = (200, 100)
NAMES = ["COCO_val2014_000000000042.jpg", "COCO_val2014_000000000007.jpg"]
IDS = [42, 7]

Regions = dict[int, tuple[NDArray, NDArray]]


def some_regions() -> Regions:
    """Features (n, D) and boxes (n, 4) in pixels of each image, three and two of them."""
    rng, found = np.random.default_rng(0), {}
    for image, number in zip(IDS, (3, 2), strict=True):
        corners = rng.uniform(0, 0.5, (number, 2)) * SIZE
        sides = rng.uniform(0.1, 0.5, (number, 2)) * SIZE
        boxes = np.concatenate([corners, corners + sides], axis=1).astype(np.float32)
        found[image] = (rng.uniform(0, 3, (number, D)).astype(np.float32), boxes)
    return found


def tsv_line(image: Any, regions: tuple[NDArray, NDArray], size: tuple[int, int] = SIZE) -> str:
    def packed(values: NDArray) -> str:
        numbers = values.ravel().tolist()
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()

    features, boxes = regions
    return "\t".join([str(image), *map(str, size), str(len(boxes)), packed(boxes), packed(features)]) + "\r\n"


def write_tsv(folder: Path) -> Path:
    lines = [tsv_line(image, regions) for image, regions in some_regions().items()]
    (folder / "trainval.tsv").write_text("".join(lines), newline="")
    return folder / "trainval.tsv"


def write_parts_of_tsv(folder: Path) -> Path:
    (folder / "parts").mkdir()
    for part, (image, regions) in enumerate(some_regions().items()):
        (folder / f"parts/karpathy_train.tsv.{part}").write_text(tsv_line(image, regions), newline="")
    return folder / "parts"


def write_cocobu(folder: Path) -> Path:
    for name in ("cocobu_att", "cocobu_box"):
        (folder / name).mkdir()
    for image, (features, boxes) in some_regions().items():
        np.savez_compressed(folder / f"cocobu_att/{image}", feat=features)
        np.save(folder / f"cocobu_box/{image}", boxes)
    return folder / "cocobu_att"


def write_one_file_each(folder: Path) -> Path:
    """With objects that numpy would unpickle, in an array that is not needed."""
    (folder / "npz").mkdir()
    for image, (features, boxes) in some_regions().items():
        info = np.array({"image_id": image}, dtype=object)
        sizes = {"image_w": SIZE[0], "image_h": SIZE[1], "num_bbox": len(boxes)}
        np.savez_compressed(folder / f"npz/{image}", x=features, bbox=boxes, info=info, **sizes)
    return folder / "npz"


def h5_file(path: Path, arrays: Mapping[str, NDArray]) -> Path:
    h5py = pytest.importorskip("h5py", reason="needs h5py, which make setup installs")
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values)
    return path


def write_m2(folder: Path) -> Path:
    arrays = {}
    for image, (features, boxes) in some_regions().items():
        arrays |= {f"{image}_features": features, f"{image}_boxes": boxes, f"{image}_cls_prob": np.zeros((2, 3))}
    return h5_file(folder / "coco_detections.hdf5", arrays)


LAYOUTS = [write_tsv, write_parts_of_tsv, write_cocobu, write_one_file_each, write_m2]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    examples = []
    for name in NAMES:
        Image.new("RGB", SIZE).save(tmp_path / name)
        examples.append(Example(name, str(tmp_path / name), (Caption(("a", "dog")),)))
    return Dataset("two", {"train": (examples[0],), "val": (examples[1],), "test": ()})


@pytest.fixture
def read(dataset: Dataset, tmp_path: Path) -> Callable[..., Any]:
    """Return the stored regions (I, L, D + 4) of a file, and the encoder."""

    def read(path: Path, skip_unreadable: bool = False, **settings: Any) -> tuple[torch.Tensor, RegionFeatures]:
        encoder = RegionFeatures(str(path), **{"dim": D, "max_regions": 5, **settings})
        cache = tmp_path / "cache"
        source, kept = open_source(dataset, encoder, cache, Extraction(), skip_unreadable=skip_unreadable)
        examples = kept.examples()
        return source(examples)(range(len(examples))).float(), encoder

    return read


@pytest.mark.parametrize("write", LAYOUTS)
def test_every_layout_gives_the_same_regions(write: Callable[[Path], Path], read: Callable[..., Any], tmp_path: Path):
    stored, encoder = read(write(tmp_path))
    regions = some_regions()
    assert stored.shape == (2, 5, D + 4)
    for of_image, (features, boxes) in zip(stored, regions.values(), strict=True):
        number = len(features)
        np.testing.assert_allclose(of_image[:number, :D], features, rtol=1e-3)
        places = np.array(encoder.boxes_of(of_image).boxes)
        np.testing.assert_allclose(places, boxes / [*SIZE, *SIZE], atol=1e-3)
        assert not of_image[number:].any()


def test_regions_are_trimmed_to_those_of_the_batch_and_have_places(read: Callable[..., Any], tmp_path: Path):
    stored, encoder = read(write_tsv(tmp_path), coordinate_scale=2.0)
    located = encoder.prepare_regions(stored)
    assert located.shape == (2, 3, D + 5) == (2, 3, encoder.region_dim)
    features, boxes = some_regions()[42]
    left, top, right, bottom = (boxes / [*SIZE, *SIZE]).T
    area = (right - left) * (bottom - top)
    expected = np.concatenate([features, 2 * np.stack([left, top, right, bottom, area], axis=1)], axis=1)
    np.testing.assert_allclose(located[0], expected, atol=2e-3)
    assert not located[1, 2].any()


def test_files_know_images_by_name_or_number():
    assert image_ids("COCO_val2014_000000391895.jpg") == [
        "COCO_val2014_000000391895.jpg",
        "COCO_val2014_000000391895",
        "391895",
    ]
    assert image_ids("1000092795.jpg") == ["1000092795.jpg", "1000092795"]
    assert image_ids("../../etc/passwd") == ["passwd"]
    assert image_ids("a_²") == ["a_²"]


def test_boxes_in_fractions_stay_and_boxes_without_an_area_get_one(read: Callable[..., Any], tmp_path: Path):
    boxes = np.array([[0.1, 0.2, 0.1, 0.9], [0.5, 0.5, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], np.float32)
    lines = [tsv_line(image, (np.ones((3, D)), boxes)) for image in IDS]
    (tmp_path / "fractions.tsv").write_text("".join(lines))
    stored, encoder = read(tmp_path / "fractions.tsv")
    found = encoder.boxes_of(stored[0]).boxes
    assert found[0] == pytest.approx((0.1, 0.2, 0.1 + 2**-10, 0.9), abs=5e-4)
    assert found[1] == (0.5, 0.5, 1.0, 1.0)
    assert all(box.area > 0 for box in found)


def test_an_image_without_regions_is_reported_or_skipped(read: Callable[..., Any], tmp_path: Path):
    (tmp_path / "one.tsv").write_text(tsv_line(42, some_regions()[42]))
    with pytest.raises(UserError, match=r"one.tsv has no regions of COCO_val2014_000000000007.jpg; .*skip_unreadable"):
        read(tmp_path / "one.tsv")
    assert len(read(tmp_path / "one.tsv", skip_unreadable=True)[0]) == 1


def npz_with(folder: Path, **members: bytes) -> Path:
    (folder / "npz").mkdir()
    for image in IDS:
        with zipfile.ZipFile(folder / f"npz/{image}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)
    return folder / "npz"


def npy(values: Any, header: str = "") -> bytes:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=True)
    if not header:
        return content.getvalue()
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


BOXES = npy(np.array([[0, 0, 50, 50]], np.float32))
HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 2048), }"
BOMB = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 6), }"

DAMAGED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "objects": (lambda f: npz_with(f, x=npy(np.array([{}])), bbox=BOXES), "Object arrays cannot be loaded"),
    "huge": (lambda f: npz_with(f, x=npy(0, HUGE), bbox=BOXES), "Unable to allocate|EOF"),
    "cut": (lambda f: npz_with(f, x=npy(0, BOMB), bbox=BOXES), "EOF: reading array data"),
    "no header": (lambda f: npz_with(f, x=b"\x93NUMPY\x01\x00\xff", bbox=BOXES), "EOF"),
    "not numpy": (lambda f: npz_with(f, x=b"hello", bbox=BOXES), "has no attribute"),
    "no boxes": (lambda f: npz_with(f, x=npy(np.ones((1, D), np.float32))), "encoder.boxes=FOLDER"),
    "other arrays": (lambda f: npz_with(f, y=BOXES), "none of the arrays feat and x"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_and_hostile_arrays_are_reported_in_a_sentence(case: str, read: Callable[..., Any], tmp_path: Path):
    write, reason = DAMAGED[case]
    with pytest.raises(UserError, match=reason) as fault:
        read(write(tmp_path))
    assert "\n" not in str(fault.value)


def test_a_header_that_unpacks_to_any_size_is_not_read(read: Callable[..., Any], tmp_path: Path):
    bomb = b"\x93NUMPY\x02\x00" + struct.pack("<I", 4_000_000_000) + b" " * 200_000_000
    path = npz_with(tmp_path, x=bomb, bbox=BOXES)
    del bomb
    tracemalloc.start()
    with pytest.raises(UserError, match="more than 4,194,304 values"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * LARGEST


WRONG: dict[str, tuple[Any, Any, str]] = {
    "width": (np.ones((2, 7)), [[0, 0, 9, 9]] * 2, "give encoder.dim=7"),
    "many": (np.ones((6, D)), [[0, 0, 9, 9]] * 6, "encoder.max_regions=5 reads 1 to 5"),
    "zeros": (np.zeros((2, D)), [[0, 0, 9, 9]] * 2, "has 0 regions"),
    "infinite": (np.full((1, D), np.inf), [[0, 0, 9, 9]], "not finite"),
    "corners": (np.ones((1, D)), [[90, 0, 9, 9]], "corners are not left, top, right, bottom"),
    "beyond": (np.ones((1, D)), [[0, 0, 400, 90]], "another size"),
    "no size": (np.ones((1, D)), [[0, 0, 9, 9]], "another size"),
}


@pytest.mark.filterwarnings("ignore:.* encountered in divide")
@pytest.mark.parametrize("case", WRONG)
def test_values_that_do_not_fit_are_reported(case: str, read: Callable[..., Any], tmp_path: Path):
    features, boxes, reason = WRONG[case]
    size = (0, 0) if case == "no size" else SIZE
    (tmp_path / "bad.tsv").write_text(tsv_line(42, (np.asarray(features), np.asarray(boxes)), size))
    with pytest.raises(UserError, match=reason):
        read(tmp_path / "bad.tsv")


def test_damaged_hdf5_files_are_reported(read: Callable[..., Any], tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    path = write_m2(tmp_path)
    content = path.read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.h5").write_text("hello")
    for name in ("cut.h5", "text.h5"):
        with pytest.raises(UserError, match=r"cannot be read"):
            read(tmp_path / name)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["42_features"] = h5py.ExternalLink(path.name, "42_features")
        file["42_boxes"] = np.zeros((1, 4))
    with pytest.raises(UserError, match=r"42_features is not an array in this file"):
        read(tmp_path / "link.h5")
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("42_features", (10**9, 2048), "f4", chunks=(1, 2048))
        file["42_boxes"] = np.zeros((1, 4))
    with pytest.raises(UserError, match=r"more than 4,194,304 values"):
        read(tmp_path / "huge.h5")
    with h5py.File(tmp_path / "objects.h5", "w") as file:
        file.create_dataset("42_features", (1,), h5py.string_dtype())
    with pytest.raises(UserError, match=r"the type object instead of numbers"):
        read(tmp_path / "objects.h5")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.tsv", "does not exist"),
        ("photo.gif", "unknown layout"),
        ("pipe.tsv", "it is a pipe"),
        ("pipe.h5", "it is a pipe"),
    ],
)
def test_what_is_no_file_of_regions_is_reported(name: str, reason: str, read: Callable[..., Any], tmp_path: Path):
    if name == "photo.gif":
        (tmp_path / name).write_text("")
    if name.startswith("pipe"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=reason):
        read(tmp_path / name)
