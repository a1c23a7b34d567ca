"""Files that would take minutes to decode are refused, and files that only look like them are opened."""

import io
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_uploads import chunk, encoded
from PIL import Image
from slow_cases import slow_after
from slow_images import (
    SLOW_IMAGES,
    gif_with_comments,
    jpeg_of_side,
    jpeg_with,
    jpeg_with_scans,
    png_with,
    tiff_of_strips,
)

from showattendtell.errors import UserError
from showattendtell.images.reading import decode_image, image_size, open_image, read_pixels

QUICK = 20
"""Seconds of a processor in which every file is refused, however busy it is otherwise."""


@pytest.mark.parametrize("kind", slow_after(7, SLOW_IMAGES))
def test_a_file_that_takes_too_long_to_decode_is_refused_in_one_sentence(tmp_path: Path, kind: str):
    content, reason = SLOW_IMAGES[kind][0](), SLOW_IMAGES[kind][1]
    (tmp_path / "costly.jpg").write_bytes(content)
    begin = time.process_time()
    for read in (open_image, read_pixels):
        with pytest.raises(UserError, match=rf"^image .*/costly.jpg {reason}") as refused:
            read(tmp_path / "costly.jpg")
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=rf"^image a.jpg {reason}"):
        decode_image(content, "a.jpg")
    assert time.process_time() - begin < QUICK


@pytest.mark.parametrize(
    ("side", "whole_scan", "sentence"),
    [
        (24_000, False, "178.957 million pixels; give a smaller copy or a baseline JPEG of one scan"),
        (60_000, True, "1000 million pixels; give a smaller copy"),
    ],
)
def test_a_large_jpeg_whose_pixels_would_fill_the_memory_is_refused(side: int, whole_scan: bool, sentence: str):
    with pytest.raises(UserError, match=rf"^image a.jpg has more than {sentence}$"):
        decode_image(jpeg_of_side(side, whole_scan), "a.jpg", 64e6)


def noise(form: str, **settings: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, size=(300, 400, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), form, **settings)


def bytes_that_look_like_scans() -> bytes:
    return b"\xff\xda\0\x0c" * 500


HARMLESS: dict[str, Callable[[], bytes]] = {
    "JPEG of 100 scans": lambda: jpeg_with_scans(100),
    "progressive JPEG": lambda: noise("JPEG", progressive=True),
    "JPEG with restart markers": lambda: noise("JPEG", restart_marker_blocks=1),
    "JPEG with a thumbnail of 4,000 scans": lambda: jpeg_with_scans(10, thumbnail=jpeg_with_scans(4_000)),
    "JPEG with a thumbnail that looks like scans": lambda: jpeg_with_scans(10, thumbnail=bytes_that_look_like_scans()),
    "JPEG with a film behind it": lambda: noise("JPEG") + bytes_that_look_like_scans(),
    "JPEG with some padding": lambda: jpeg_with(b"\xff" * 1_000),
    "JPEG with 255 segments of metadata": lambda: jpeg_with((b"\xff\xe2\xff\xf0" + bytes(0xFFEE)) * 255),
    "PNG in chunks of 10 bytes": lambda: png_in_chunks(10),
    "PNG with comments": lambda: png_with(chunk(b"tEXt", b"a\0b") * 1_000),
    "GIF with comments": lambda: gif_with_comments(1_000),
    "TIFF of 60,000 strips": lambda: tiff_of_strips(60_000),
    "PPM": lambda: noise("PPM"),
}


def png_in_chunks(length: int) -> bytes:
    """Pixels in chunks of so many bytes."""
    rows = zlib.compress(bytes(48 * (1 + 3 * 64)), 0)
    chunks = b"".join(chunk(b"IDAT", rows[at : at + length]) for at in range(0, len(rows), length))
    whole = encoded(Image.new("RGB", (64, 48)), "PNG")
    return whole[:33] + chunks + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", slow_after(8, HARMLESS))
def test_a_file_that_is_only_odd_has_its_pixels(tmp_path: Path, kind: str):
    content = HARMLESS[kind]()
    (tmp_path / "odd.jpg").write_bytes(content)
    with Image.open(io.BytesIO(content)) as plain:
        expected = np.asarray(plain.convert("RGB")).astype(int)
    opened = np.asarray(open_image(tmp_path / "odd.jpg")).astype(int)
    np.testing.assert_array_equal(opened, expected)
    np.testing.assert_allclose(read_pixels(tmp_path / "odd.jpg").permute(1, 2, 0).int(), expected, atol=1)
    assert image_size(str(tmp_path / "odd.jpg")) == opened.shape[1::-1]


def test_a_scan_after_data_that_look_like_a_segment_is_counted():
    """Decoders find the next marker behind coded data, whatever they contain."""
    whole = jpeg_with_scans(4_000)
    last = whole.rindex(b"\xff\xda")
    for between in (b"\xff\0\xff\xd0\xff\xff", b"\0" * 99, b"\xff\xfe\0\x08\xff\xda\0\x0c\0\0"):
        with pytest.raises(UserError, match=r"has 4,000 scans"):
            decode_image(whole[:last] + between + whole[last:], "a.jpg")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


def test_nothing_is_opened_that_starts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    (tmp_path / "a.jpg").write_bytes(POSTSCRIPT)
    for read in (open_image, read_pixels, lambda path: image_size(str(path))):
        with pytest.raises(UserError, match=r"a.jpg cannot be read \(it is empty or of no known image format\)"):
            read(tmp_path / "a.jpg")
