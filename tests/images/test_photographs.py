"""Every form in which a program may have a photograph shows the same picture."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_uploads import encoded
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.images.limits import FORMATS, SUFFIXES
from showattendtell.images.reading import as_image, decode_image, find_images, image_size, read_pixels

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
        *(
            (grey, GREY)
            for grey in (GREY, GREY[..., 0], torch.from_numpy(GREY[..., 0]), torch.tensor(GREY[..., 0])[None])
        ),
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
        (io.StringIO("text"), "a StringIO is not a photograph"),
        (None, "a NoneType is not a photograph"),
        (7, "an? int is not a photograph"),
        ("missing.jpg", "missing.jpg does not exist"),
    ],
)
def test_what_is_no_photograph_is_reported(photograph: Any, sentence: str):
    with pytest.raises(UserError, match=sentence):
        as_image(photograph)


def test_an_image_of_more_pixels_than_it_may_have_is_refused_by_its_header():
    bomb = encoded(Image.new("1", (2_000, 800)))
    with pytest.raises(UserError, match="bomb.png has more than 1 million pixels; give a smaller copy"):
        decode_image(bomb, "bomb.png", max_pixels=1_000_000)
    assert decode_image(encoded(Image.fromarray(PIXELS)), "small.png", max_pixels=35).size == (7, 5)


@pytest.mark.parametrize(("most", "size"), [(70_000, (300, 200)), (50_000, (150, 100)), (4_000, (75, 50))])
def test_a_jpeg_of_more_pixels_is_decoded_at_a_fraction_of_its_size(most: int, size: tuple[int, int]):
    across, down = np.mgrid[:200, :300] // 2
    picture = Image.fromarray(np.stack([across, down, across], axis=2).astype(np.uint8))
    small = decode_image(encoded(picture, "JPEG"), "panorama.jpg", max_pixels=most)
    assert small.size == size
    np.testing.assert_allclose(np.asarray(small), np.asarray(picture.resize(size, Image.Resampling.BOX)), atol=6)


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
