from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from repository import SHARED

from showattendtell.images.reading import Preprocessing, find_images, image_size, open_image, read_pixels

COCO_MINI = SHARED / "coco_mini"
UPRIGHT = np.random.default_rng(0).integers(0, 256, size=(2, 3, 3), dtype=np.uint8)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
ORIENTATION = 0x0112
AS_STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[:, ::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a[::-1].swapaxes(0, 1),
    9: lambda a: a,
}
"""Rows and columns of the file by EXIF orientation. Its row 0 and column 0 are: 1 top left, 2 top right, 3 bottom
right, 4 bottom left, 5 left top, 6 right top, 7 right bottom, 8 left bottom; 9 is not defined, and means nothing."""


def save_turned(path: Path, orientation: int, scale: int = 1) -> str:
    stored = AS_STORED[orientation](UPRIGHT).repeat(scale, axis=0).repeat(scale, axis=1)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif)
    return str(path)


@pytest.mark.parametrize("orientation", AS_STORED)
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_a_turned_photograph_is_opened_upright(tmp_path: Path, orientation: int, suffix: str):
    path = save_turned(tmp_path / f"turned.{suffix}", orientation, scale=10)
    opened = np.asarray(open_image(path)).astype(int)
    upright = UPRIGHT.repeat(10, axis=0).repeat(10, axis=1)
    np.testing.assert_allclose(opened[5::10, 5::10], upright[5::10, 5::10], atol=150 if suffix == "jpg" else 0)
    assert image_size(path) == open_image(path).size == (30, 20)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(read_pixels(path).permute(1, 2, 0), expected)


def photographs(number: int) -> list[Path]:
    files = sorted((COCO_MINI / "val2017").glob("*.jpg")) + sorted((COCO_MINI / "train2017").glob("*.jpg"))
    return files[:: len(files) // number]


@pytest.mark.skipif(not COCO_MINI.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_photographs_decoded_fast_have_the_pixels_that_pillow_decodes():
    for path in photographs(20):
        slow, fast = np.asarray(open_image(path)).astype(int), read_pixels(path)
        np.testing.assert_allclose(fast.permute(1, 2, 0).int(), slow, rtol=0, atol=1)


def test_folders_are_searched_with_their_subfolders_in_sorted_order_and_each_once(tmp_path: Path):
    photos = tmp_path / "photos"
    names = ["b.png", "rome/a.png", "rome/forum/c.png", "verona/d.png"]
    for name in [*names, ".cache/e.png", "rome/.f.png", "../secret.png", "../linked/g.png"]:
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(photos / name)
    for name, target in {"rome/loop": photos, "rome/forum/up": tmp_path, "linked": tmp_path / "linked"}.items():
        (photos / name).symlink_to(target)
    for name in ("notes.txt", "rome/film.mpg", ".hidden.txt"):
        (photos / name).touch()
    found = find_images([str(photos)])
    assert find_images(str(photos)) == found
    assert found.names == ["b.png", "linked/g.png", *names[1:]]
    assert found.sources == [str(photos / name) for name in found.names]
    assert found.others == 2


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("width", "height"), [(50, 37), (37, 50), (40, 40), (20, 90), (24, 24)])
def test_preprocessing_is_resize_central_crop_and_normalization(width: int, height: int, interpolation: str):
    pixels = np.random.default_rng(0).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    preprocessing = Preprocessing(resize=32, crop=24, mean=MEAN, std=STD, interpolation=interpolation)
    cut = preprocessing(image)

    scale = 32 / min(width, height)
    wide, high = int(width * scale), int(height * scale)
    resized = np.asarray(image.resize((wide, high), Image.Resampling[interpolation.upper()]))
    top, left = round((high - 24) / 2), round((wide - 24) / 2)
    cropped = resized[top : top + 24, left : left + 24]
    assert cut.dtype == torch.uint8
    np.testing.assert_allclose(cut.permute(1, 2, 0).numpy().astype(int), cropped, rtol=0, atol=1)

    normalized = preprocessing.normalize(torch.stack([cut, cut]))
    expected = (cut.permute(1, 2, 0).numpy() / 255 - np.array(MEAN)) / np.array(STD)
    assert normalized.dtype == torch.float32
    np.testing.assert_allclose(normalized.permute(0, 2, 3, 1), [expected, expected], atol=1e-5)


@pytest.mark.parametrize(("width", "height"), [(50, 37), (37, 50), (40, 40), (2, 900)])
@pytest.mark.parametrize(("resize", "crop"), [(24, 24), (32, 24)])
def test_a_squashed_image_is_seen_whole_but_for_what_is_cut_off(width: int, height: int, resize: int, crop: int):
    """Of greys that bicubic resampling does not overshoot: Pillow and torch clip between different passes."""
    pixels = np.random.default_rng(0).integers(64, 192, size=(height, width, 3), dtype=np.uint8)
    image, rim = Image.fromarray(pixels), (resize - crop) // 2
    squashed = np.asarray(image.resize((resize, resize), Image.Resampling.BICUBIC)).astype(int)
    seen = Preprocessing(resize, crop, MEAN, STD, crop_mode="squash")(image)
    expected = squashed[rim : rim + crop, rim : rim + crop]
    np.testing.assert_allclose(seen.permute(1, 2, 0).numpy().astype(int), expected, rtol=0, atol=2)


@pytest.mark.parametrize("axis", [0, 1])
def test_of_a_long_strip_only_its_middle_is_resized(axis: int):
    pixels = np.random.default_rng(0).integers(0, 256, size=(40000, 2, 3), dtype=np.uint8)
    middle = pixels[20000 - 16 : 20000 + 16]
    preprocessing = Preprocessing(32, 24, MEAN, STD)
    strip, part = (Image.fromarray(np.moveaxis(levels, 0, axis)) for levels in (pixels, middle))
    assert torch.equal(preprocessing(strip), preprocessing(part))


def test_the_crop_box_worked_by_hand():
    """500 x 400 to 320 x 256, of which 224 x 224 are cut out: 350 pixels of the photograph."""
    assert Preprocessing(256, 224, MEAN, STD).crop_box(500, 400) == (75, 25, 425, 375)
    assert Preprocessing(256, 224, MEAN, STD, crop_mode="squash").crop_box(512, 400) == (32, 25, 480, 375)
    assert Preprocessing(224, 224, MEAN, STD, crop_mode="squash").crop_box(500, 400) == (0, 0, 500, 400)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org/a/dog.jpg?size=2#top", "dog.jpg"),
        ("http://example.org", "photograph"),
        ("http://example.org?file=/a.jpg", "photograph"),
        ("http://[::1", "photograph"),
        ("http://[::1]:80/cat.png", "cat.png"),
    ],
)
def test_a_url_has_the_name_of_its_file(url: str, name: str):
    assert find_images(url).names == [name]
