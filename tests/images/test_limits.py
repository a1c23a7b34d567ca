"""Files that are broken, odd or costly: each gives the pixels that are expected of it, or its sentence."""

import io
import os
import struct
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hostile_uploads import chunk, encoded, noise, png
from PIL import Image, features
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

Write = Callable[[Path], object]

COLOR = (12, 200, 99)
PLAIN = Image.new("RGB", (16, 16), COLOR)
RED, GREEN = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 255, 0))
WHITE = (255, 255, 255)


def saved(image: Image.Image, form: str, **settings: object) -> Write:
    return lambda path: path.write_bytes(encoded(image, form, **settings))


def animated(form: str, **settings: object) -> Write:
    return saved(RED, form, save_all=True, append_images=[GREEN], **settings)


def content(text: str | bytes) -> Write:
    return lambda path: path.write_bytes(text.encode() if isinstance(text, str) else text)


def palette(**settings: object) -> Write:
    image = Image.new("P", (16, 16), 1)
    image.putpalette([0, 0, 0, *COLOR])
    return saved(image, **settings)


def grey(levels: list[list[float]], kind: type) -> Write:
    return saved(Image.fromarray(np.array(levels, dtype=kind)), "TIFF")


def deep(color: int, row: list[int]) -> Write:
    """A PNG of one pixel of 16 bits, for the kinds that Pillow does not write."""
    return content(png(1, 1, zlib.compress(bytes([0, *row])), depth=16, color=color))


ODD: dict[str, tuple[Write, tuple[int, int, int]]] = {
    "progressive.jpg": (saved(PLAIN, "JPEG", progressive=True), COLOR),
    "not-subsampled.jpg": (saved(PLAIN, "JPEG", subsampling=0), COLOR),
    "stored-as-rgb.jpg": (saved(PLAIN, "JPEG", keep_rgb=True), COLOR),
    "print.jpg": (saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"), (255, 0, 0)),
    "print.tif": (saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "TIFF"), (255, 0, 0)),
    "grey.jpg": (saved(Image.new("L", (16, 16), 100), "JPEG"), (100, 100, 100)),
    "grey.png": (saved(Image.new("L", (16, 16), 100), "PNG"), (100, 100, 100)),
    "bilevel.png": (saved(Image.new("1", (16, 16), 1), "PNG"), WHITE),
    "opaque.png": (saved(Image.new("RGBA", (16, 16), (*COLOR, 255)), "PNG"), COLOR),
    "palette.gif": (palette(form="GIF"), COLOR),
    "plain.webp": (saved(PLAIN, "WEBP", lossless=True), COLOR),
    "one-pixel.jpg": (saved(PLAIN.resize((1, 1)), "JPEG"), COLOR),
    "more-behind-it.jpg": (content(encoded(PLAIN, "JPEG") + b"more" * 99), COLOR),
    "nonsense-as-exif.jpg": (saved(PLAIN, "JPEG", exif=b"Exif\0\0nonsense"), COLOR),
    "damaged-exif.jpg": (saved(PLAIN, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12damage"), COLOR),
    "png-in-truth.jpg": (saved(PLAIN, "PNG"), COLOR),
    "jpeg-in-truth.png": (saved(PLAIN, "JPEG"), COLOR),
    "no-suffix": (saved(PLAIN, "JPEG"), COLOR),
    "animated.gif": (animated("GIF"), (255, 0, 0)),
    "animated.png": (animated("PNG"), (255, 0, 0)),
    "animated.webp": (animated("WEBP", lossless=True), (255, 0, 0)),
    "pages.tif": (animated("TIFF"), (255, 0, 0)),
    "two-pictures.jpg": (animated("MPO"), (255, 0, 0)),
    "palette.png": (palette(form="PNG"), COLOR),
    "transparent-palette.png": (palette(form="PNG", transparency=b"\xff\x00"), WHITE),
    "transparent-palette.gif": (palette(form="GIF", transparency=1), WHITE),
    "hidden-color.png": (saved(Image.new("RGBA", (16, 16), (255, 0, 0, 0)), "PNG"), WHITE),
    "half-transparent.png": (saved(Image.new("RGBA", (16, 16), (255, 0, 0, 128)), "PNG"), (255, 127, 127)),
    "transparent-grey.png": (saved(Image.new("LA", (16, 16), (0, 0)), "PNG"), WHITE),
    "one-color-transparent.png": (saved(PLAIN, "PNG", transparency=COLOR), WHITE),
    "one-grey-transparent.png": (saved(Image.new("L", (16, 16), 7), "PNG", transparency=7), WHITE),
    "deep-rgb.png": (deep(2, [12, 0, 200, 0, 99, 0]), COLOR),
    "deep-transparent.png": (deep(6, [12, 0, 200, 0, 99, 0, 0, 0]), WHITE),
    "deep-grey-with-alpha.png": (deep(4, [100, 0, 255, 255]), (100, 100, 100)),
    "16-bit.png": (saved(Image.fromarray(np.full((4, 4), 257 * 100, np.uint16)), "PNG"), (100, 100, 100)),
    "16-bit-big-endian.tif": (saved(Image.fromarray(np.full((4, 4), 257 * 100, ">u2")), "TIFF"), (100, 100, 100)),
    "16-bit.pgm": (content(b"P5 4 4 65535\n" + b"dd" * 16), (100, 100, 100)),
    "32-bit-within-16.tif": (grey([[257 * 100] * 4] * 4, np.int32), (100, 100, 100)),
    "32-bit-negative.tif": (grey([[-5] * 4] * 4, np.int32), (0, 0, 0)),
    "float-to-1.tif": (grey([[0.5] * 4] * 4, np.float32), (127, 127, 127)),
    "float-to-255.tif": (grey([[99] * 4] * 4, np.float32), (99, 99, 99)),
    "float-without-number.tif": (grey([[np.nan] * 4] * 4, np.float32), (0, 0, 0)),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_image_has_the_pixels_expected_of_it(tmp_path: Path, name: str):
    write, expected = ODD[name]
    write(tmp_path / name)
    opened = np.asarray(open_image(tmp_path / name))
    assert np.abs(opened.astype(int) - expected).max() <= 2
    pixels = read_pixels(tmp_path / name).permute(1, 2, 0)
    np.testing.assert_array_equal(pixels, opened)
    assert image_size(str(tmp_path / name)) == opened.shape[1::-1]


def test_32_bits_beyond_16_are_scaled_by_the_largest_and_not_wrapped(tmp_path: Path):
    grey([[0, 65535], [65536, 131070]], np.int32)(tmp_path / "a.tif")
    assert np.asarray(open_image(tmp_path / "a.tif"))[..., 0].tolist() == [[0, 127], [127, 255]]


def cut(image: bytes, share: float) -> Write:
    return content(image[: round(share * len(image))])


def flipped_byte(image: bytes) -> Write:
    middle = len(image) // 2
    return content(image[:middle] + bytes([image[middle] ^ 255]) + image[middle + 1 :])


def gigantic_jpeg(path: Path, **settings: object) -> None:
    image = bytearray(encoded(PLAIN, "JPEG", **settings))
    size = image.index(b"\xff\xc2" if settings else b"\xff\xc0") + 5
    image[size : size + 4] = struct.pack(">HH", 65000, 65000)
    path.write_bytes(image)


def damaged_avif(path: Path) -> None:
    if not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    image = encoded(noise(), "AVIF")
    path.write_bytes(image[: image.index(b"mdat") + 4].ljust(len(image), b"\0"))


BROKEN: dict[str, tuple[Write, str]] = {
    "empty": (content(""), "no known image format"),
    "text": (content("Größe: 404\n"), "no known image format"),
    "bytes before a JPEG": (content(b"\0\1before" + encoded(PLAIN, "JPEG")), "no known image format"),
    "half a JPEG": (cut(encoded(noise(), "JPEG"), 0.5), "truncated"),
    "half a progressive JPEG": (cut(encoded(noise(), "JPEG", progressive=True), 0.5), "truncated"),
    "the header of a JPEG": (cut(encoded(noise(), "JPEG"), 0.1), "[Tt]runcated"),
    "half a PNG": (cut(encoded(noise(), "PNG"), 0.5), "truncated"),
    "half a GIF": (cut(encoded(noise(), "GIF"), 0.5), "truncated"),
    "half a WebP": (cut(encoded(noise(), "WEBP"), 0.5), "."),
    "half a TIFF": (cut(encoded(noise(), "TIFF"), 0.5), "."),
    "a PNG with a wrong byte": (flipped_byte(encoded(noise(), "PNG")), "broken|checksum|truncated"),
    "an AVIF of zeros": (damaged_avif, "."),
    "a folder": (Path.mkdir, "it is a folder"),
    "a pipe": (os.mkfifo, "it is a pipe or device"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a pipe or device"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
}


@pytest.mark.parametrize(
    "write",
    [
        gigantic_jpeg,
        partial(gigantic_jpeg, progressive=True),
        content(png(100_000, 100_000, b"")),
        content("P6 20000 20000 255\n"),
    ],
)
def test_a_gigantic_file_is_refused_by_its_header(tmp_path: Path, write: Callable[[Path], None]):
    write(tmp_path / "a.jpg")
    for read in (open_image, read_pixels, lambda path: image_size(str(path))):
        with pytest.raises(UserError, match=r"a.jpg has more than (178.957|1000) million pixels; give a smaller copy"):
            read(tmp_path / "a.jpg")


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_read_is_reported_in_one_line(tmp_path: Path, kind: str):
    write, reason = BROKEN[kind]
    write(tmp_path / "broken.jpg")
    for read in (open_image, read_pixels):
        sentence = rf"^image .*broken.jpg cannot be read \(.*({reason}).*\); repair or replace the file$"
        with pytest.raises(UserError, match=sentence) as error:
            read(tmp_path / "broken.jpg")
        assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"])
def test_whatever_is_damaged_there_are_pixels_or_a_sentence_and_both_ways_agree(tmp_path: Path, form: str):
    rng = np.random.default_rng(0)
    image, file = encoded(noise(), form), tmp_path / "damaged"
    for _ in range(40):
        damaged = np.frombuffer(image, dtype=np.uint8).copy()
        places = rng.integers(len(damaged) if rng.random() < 0.7 else 300, size=rng.choice([1, 3, 20]))
        damaged[places] = rng.integers(256, size=len(places))
        file.write_bytes(damaged.tobytes()[: rng.integers(len(damaged)) if rng.random() < 0.3 else None])
        try:
            opened = np.asarray(open_image(file))
        except UserError:
            with pytest.raises(UserError):
                read_pixels(file)
        else:
            np.testing.assert_allclose(read_pixels(file).permute(1, 2, 0).int(), opened.astype(int), rtol=0, atol=1)


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


LIKE_SCANS = b"\xff\xda\0\x0c" * 500
HARMLESS: dict[str, Callable[[], bytes]] = {
    "JPEG of 100 scans": lambda: jpeg_with_scans(100),
    "progressive JPEG": lambda: encoded(noise(400, 300), "JPEG", progressive=True),
    "JPEG with restart markers": lambda: encoded(noise(400, 300), "JPEG", restart_marker_blocks=1),
    "JPEG with a thumbnail of 4,000 scans": lambda: jpeg_with_scans(10, thumbnail=jpeg_with_scans(4_000)),
    "JPEG with a thumbnail that looks like scans": lambda: jpeg_with_scans(10, thumbnail=LIKE_SCANS),
    "JPEG with a film behind it": lambda: encoded(noise(400, 300), "JPEG") + LIKE_SCANS,
    "JPEG with some padding": lambda: jpeg_with(b"\xff" * 1_000),
    "JPEG with 255 segments of metadata": lambda: jpeg_with((b"\xff\xe2\xff\xf0" + bytes(0xFFEE)) * 255),
    "PNG in chunks of 10 bytes": lambda: png_in_chunks(10),
    "PNG with comments": lambda: png_with(chunk(b"tEXt", b"a\0b") * 1_000),
    "GIF with comments": lambda: gif_with_comments(1_000),
    "TIFF of 60,000 strips": lambda: tiff_of_strips(60_000),
    "PPM": lambda: encoded(noise(400, 300), "PPM"),
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
