"""Photographs in files, at addresses and in every form in which a program may have them, and their preprocessing."""

import io
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_uploads import encoded
from photo_server import Handler, PhotoServer, serve_photos
from PIL import Image, ImageOps
from repository import SHARED

from showattendtell.errors import UserError
from showattendtell.images import reading
from showattendtell.images.limits import FORMATS, SUFFIXES
from showattendtell.images.reading import (
    Preprocessing,
    as_image,
    decode_image,
    fetch_image,
    find_images,
    image_size,
    open_image,
    read_pixels,
)

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


def test_a_url_has_the_name_of_its_file():
    assert find_images("https://example.org/a/dog.jpg?size=2#top").names == ["dog.jpg"]
    for url in ("http://example.org", "http://example.org?file=/a.jpg", "http://[::1"):
        assert find_images(url).names == ["photograph"]


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
"""Five rows of seven pixels."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(encoded(Image.fromarray(PIXELS)))
    return path


def forms(file: Path) -> dict[str, Any]:
    channels_first = torch.from_numpy(PIXELS).movedim(2, 0)
    return {
        "path": file,
        "text": str(file),
        "bytes": file.read_bytes(),
        "bytearray": bytearray(file.read_bytes()),
        "memoryview": memoryview(file.read_bytes()),
        "open file": io.BytesIO(file.read_bytes()),
        "Pillow": Image.fromarray(PIXELS),
        "array": PIXELS,
        "array of floats": PIXELS / 255,
        "half floats": (PIXELS / 255).astype(np.float16),
        "not contiguous": np.asfortranarray(PIXELS),
        "opaque array": np.dstack([PIXELS, np.full((5, 7), 255, np.uint8)]),
        "tensor": channels_first,
        "tensor of floats": channels_first / 255,
        "float64 with gradient": (channels_first / 255).double().requires_grad_(),
    }


@pytest.mark.parametrize("form", forms(Path(__file__)))
def test_every_form_shows_the_same_picture(form: str, file: Path):
    image = as_image(forms(file)[form])
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), PIXELS)


GREY, SEEN_THROUGH = PIXELS[..., :1], np.dstack([PIXELS, np.zeros((5, 7), np.uint8)])


@pytest.mark.parametrize(
    ("pixels", "seen"),
    [
        (GREY, GREY),
        (torch.from_numpy(GREY[..., 0]), GREY),
        (torch.tensor(GREY[..., 0])[None], GREY),
        (SEEN_THROUGH, np.full((5, 7, 1), 255)),
    ],
)
def test_one_channel_is_grey_and_a_fourth_is_opacity_over_white(pixels: Any, seen: np.ndarray):
    np.testing.assert_array_equal(np.asarray(as_image(pixels)), np.repeat(seen, 3, axis=2))


@pytest.mark.parametrize(
    ("photograph", "sentence"),
    [
        (PIXELS.astype(np.int64), "int64; give uint8"),
        (PIXELS > 9, "bool; give uint8"),
        (PIXELS.astype(np.float32), "float32 from 0 to 2..; give uint8 from 0 to 255, or floats from 0 to 1"),
        (PIXELS / -255, "floats from 0 to 1"),
        (np.full((5, 7, 3), np.nan), "float64 from nan to nan"),
        (PIXELS[None], r"shape \(1, 5, 7, 3\)"),
        (torch.from_numpy(PIXELS), r"shape \(5, 7, 3\)"),
        (PIXELS[:0], r"shape \(0, 7, 3\)"),
        (np.uint8(7), r"a uint8 is not a photograph"),
        (Image.new("RGB", (0, 7)), "an image of 0 x 7 pixels"),
        (b"\0" * 40, "it is empty or of no known image format"),
        (encoded(Image.fromarray(PIXELS))[:60], "of bytes cannot be read"),
        (Image.open(io.BytesIO(encoded(Image.effect_noise((64, 48), 50), "JPEG")[:900])), "image of .* cannot be read"),
        (io.StringIO("text"), "a StringIO is not a photograph"),
        (None, "a NoneType is not a photograph"),
        (7, "an? int is not a photograph"),
        ("missing.jpg", "missing.jpg does not exist"),
    ],
)
def test_what_is_no_photograph_is_reported(photograph: Any, sentence: str):
    with pytest.raises(UserError, match=sentence):
        as_image(photograph)


@pytest.mark.parametrize(("most", "size"), [(70_000, (300, 200)), (50_000, (150, 100)), (4_000, (75, 50))])
def test_a_jpeg_of_more_pixels_is_decoded_at_a_fraction_of_its_size(most: int, size: tuple[int, int]):
    across, down = np.mgrid[:200, :300] // 2
    picture = Image.fromarray(np.stack([across, down, across], axis=2).astype(np.uint8))
    small = decode_image(encoded(picture, "JPEG"), "panorama.jpg", max_pixels=most)
    assert small.size == size
    np.testing.assert_allclose(np.asarray(small), np.asarray(picture.resize(size, Image.Resampling.BOX)), atol=6)


@pytest.mark.slow
def test_a_panorama_of_more_pixels_than_pillow_allows_is_read(tmp_path: Path):
    path, picture = tmp_path / "panorama.jpg", Image.new("L", (30_000, 6_000), 200)
    picture.paste(50, (15_000, 0, 30_000, 6_000))
    picture.save(path, quality=20)
    pixels = read_pixels(path)
    assert image_size(str(path)) == (15_000, 3_000)
    assert pixels.shape == (3, 3_000, 15_000)
    assert [round(int(pixels[0, 1_500, place]), -1) for place in (3_000, 12_000)] == [200, 50]


@pytest.mark.parametrize("form", ["WEBP", "AVIF", "JPEG2000", "HEIF"])
def test_a_photograph_is_the_same_in_every_format(tmp_path: Path, form: str):
    if form == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    across, down = np.mgrid[:60, :80] * 3
    pixels = np.stack([across, down, across], axis=2).astype(np.uint8)
    for suffix in FORMATS[form].split():
        (tmp_path / f"photograph{suffix}").write_bytes(encoded(Image.fromarray(pixels), form))
    found = find_images(str(tmp_path))
    assert len(found.names) == len(FORMATS[form].split())
    for path in found.sources:
        np.testing.assert_allclose(read_pixels(path).permute(1, 2, 0), pixels, atol=20)


def test_heic_without_its_package_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    with pytest.raises(UserError, match=r"a.heic is a HEIC photograph, .*; run pip install 'showattendtell\[heic\]'"):
        decode_image(b"\0\0\0\x18ftypheic" + bytes(99), "a.heic")


def test_the_suffixes_are_those_of_pillow():
    Image.init()
    registered = Image.registered_extensions()
    known = {suffix for suffix, name in registered.items() if name in {*FORMATS, "MPO"} - {"HEIF"}}
    assert known == SUFFIXES - set(FORMATS["HEIF"].split())


@pytest.fixture
def server() -> Iterator[PhotoServer]:
    with serve_photos() as running:
        content = BytesIO()
        Image.new("RGB", (40, 30), "red").save(content, "PNG")
        running.files["photo.png"] = content.getvalue()
        yield running


def test_a_file_that_is_too_large_is_reported_before_all_of_it_is_here(
    server: PhotoServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "FILE_MEGABYTES", 0.1)
    server.files["large.jpg"] = bytes(50_000_000)
    with pytest.raises(UserError, match=r"large.jpg has more than 0.1 MB"):
        fetch_image(f"{server.address}/large.jpg")


@pytest.mark.parametrize(
    ("limit", "seconds", "pause", "sentence"),
    [("SECONDS", 0.3, 0.05, "took longer than 0.3 seconds"), ("STALLED", 0.2, 2.0, "cannot be fetched .timed out.")],
)
def test_a_server_that_sends_byte_by_byte_or_nothing_is_left(
    server: PhotoServer, monkeypatch: pytest.MonkeyPatch, limit: str, seconds: float, pause: float, sentence: str
):
    monkeypatch.setattr(reading, limit, seconds)
    server.pause, server.piece = pause, 1
    with pytest.raises(UserError, match=f"photo.png {sentence}"):
        fetch_image(f"{server.address}/photo.png")


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://example.org/a.png"])
def test_a_redirect_to_another_protocol_is_not_followed(
    server: PhotoServer, monkeypatch: pytest.MonkeyPatch, target: str
):
    def redirect(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    monkeypatch.setattr(Handler, "do_GET", redirect)
    with pytest.raises(UserError, match=r"photo.png cannot be fetched .No connection adapters were found"):
        fetch_image(f"{server.address}/photo.png")
