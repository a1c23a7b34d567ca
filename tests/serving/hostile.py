"""Uploads that nobody means well with, and some that are only odd."""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

JPEG_END = b"\xff\xd9"


class Attack(NamedTuple):
    """What is sent; `fine` are photographs after all, for which a caption is as good an answer as a refusal where
    `fine` is None."""

    name: str
    content: bytes
    fine: bool | None = False
    file_name: str = "photo.jpg"
    kind: str = "image/jpeg"


def encoded(image: Image.Image, form: str, **settings: object) -> bytes:
    content = io.BytesIO()
    image.save(content, form, **settings)
    return content.getvalue()


def noise(width: int = 64, height: int = 48) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, size=(height, width, 3), dtype=np.uint8))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, data: bytes, *extra: bytes, depth: int = 8, colour: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(extra) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def gif_with_frames(frames: int) -> bytes:
    """A GIF of one colour, its frame repeated."""
    first = encoded(Image.new("P", (16, 16)), "GIF")
    start = first.index(b",", 13)
    return first[:-1] + first[start:-1] * (frames - 1) + b";"


def tiff(side: int) -> bytes:
    """One of so many pixels each way, by its header, and one strip of a byte."""
    tags = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: side, 279: 1}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


def bombs() -> Iterator[Attack]:
    zeros = zlib.compress(bytes(10_000_000), 9)
    for side in (8_001, 20_000, 100_000, 2**31 - 1):
        yield Attack(f"PNG of {side} x {side}", png(side, side, zeros))
    for side in (9_000, 65_000):
        jpeg = bytearray(encoded(noise(), "JPEG"))
        place = jpeg.index(b"\xff\xc0") + 5
        jpeg[place : place + 4] = struct.pack(">HH", side, side)
        yield Attack(f"JPEG of {side} x {side}", bytes(jpeg))
        gif = bytearray(encoded(noise().convert("P"), "GIF"))
        gif[6:10] = struct.pack("<HH", side, side)
        yield Attack(f"GIF of {side} x {side}", bytes(gif))
        bmp = bytearray(encoded(noise(), "BMP"))
        bmp[18:26] = struct.pack("<ii", side, side)
        yield Attack(f"BMP of {side} x {side}", bytes(bmp))
        yield Attack(f"TIFF of {side} x {side}", tiff(side))
    webp = bytearray(encoded(noise(), "WEBP", lossless=True))
    webp[21:25] = struct.pack("<I", 16382 | 16382 << 14)
    yield Attack("WebP of 16383 x 16383", bytes(webp))
    yield Attack(
        "PNG with 50 MB of text packed",
        png(8, 8, zlib.compress(bytes(200)), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000), 9))),
        fine=None,
    )
    yield Attack(
        "PNG with a profile of 50 MB packed",
        png(8, 8, zlib.compress(bytes(200)), chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(50_000_000), 9))),
        fine=None,
    )
    yield Attack("PNG with far more data than pixels", png(8, 8, zeros), fine=None)
    yield Attack(
        "PNG with 50,000 chunks", png(8, 8, zlib.compress(bytes(200)), *[chunk(b"tEXt", b"a\0b")] * 50_000), fine=None
    )
    yield Attack("GIF of 10,000 frames", gif_with_frames(10_000), fine=True)


def truncated() -> Iterator[Attack]:
    whole = encoded(noise(), "JPEG")
    for length in [*range(24), *range(24, len(whole) - 2, max(1, len(whole) // 40))]:
        yield Attack(f"{length} bytes of a JPEG", whole[:length])
    for form in ("PNG", "GIF", "WEBP", "TIFF", "BMP"):
        content = encoded(noise(), form)
        for tenth in range(1, 10):
            yield Attack(f"{tenth} tenths of a {form}", content[: len(content) * tenth // 10], fine=None)


def others() -> Iterator[Attack]:
    script = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    yield Attack("nothing", b"")
    yield Attack("zeros", bytes(5000))
    yield Attack("SVG", script, kind="image/svg+xml", file_name="a.svg")
    yield Attack("SVG that says it is a JPEG", script)
    yield Attack("PDF", b"%PDF-1.7\n1 0 obj<<>>endobj\n%%EOF", kind="application/pdf")
    yield Attack("PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(id) run\nshowpage\n")
    yield Attack("web page", b"<!doctype html><script>alert(1)</script>", kind="text/html")
    yield Attack("ZIP", b"PK\x03\x04" + bytes(400))
    yield Attack("program", b"\x7fELF" + bytes(400))
    yield Attack("text", "Größe".encode() * 99)
    yield Attack("ICO", encoded(noise(64, 64), "ICO"))
    yield Attack("PPM", encoded(noise(), "PPM"))
    yield Attack("TGA", encoded(noise(), "TGA"))
    yield Attack("random", np.random.default_rng(1).bytes(9999))
    for form in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        whole = encoded(noise(), form)
        yield Attack(f"{form} with a page behind it", whole + b"<script>alert(1)</script>" * 99, fine=True)
        yield Attack(f"{form} with a ZIP behind it", whole + b"PK\x03\x04" + bytes(99), fine=True)
        yield Attack(f"{form} with bytes before it", b"GIF89b\0" + whole)
        yield Attack(f"{form} that says it is text", whole, fine=True, kind="text/plain", file_name="a.txt")
    for magic in (
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF\x10\0\0\0WEBPVP8 ",
        b"BM",
        b"II*\0",
        b"MM\0*",
    ):
        yield Attack(f"no more than the first bytes, {magic!r}", magic + b"<script>" * 9)
    yield Attack(
        "rubbish as EXIF", encoded(noise(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\xff" * 99), fine=True
    )
    yield Attack("60 kB of EXIF", encoded(noise(), "JPEG", exif=b"Exif\0\0" + bytes(60_000)), fine=True)
    looping = b"II*\0\x08\0\0\0" + struct.pack("<H", 0) + struct.pack("<I", 8)
    yield Attack("TIFF whose pictures are a circle", looping)


def odd() -> Iterator[Attack]:
    """Photographs, as odd as cameras and programs make them."""
    image = noise()
    for mode in ("L", "CMYK", "P", "RGBA", "1", "LA", "I;16", "F"):
        form = {"CMYK": "JPEG", "F": "TIFF"}.get(mode, "PNG")
        converted = (
            Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16)) if mode == "I;16" else image.convert(mode)
        )
        yield Attack(f"{mode} as {form}", encoded(converted, form), fine=True)
    yield Attack("one pixel", encoded(image.resize((1, 1)), "PNG"), fine=True)
    yield Attack("a line", encoded(image.resize((3000, 1)), "PNG"), fine=True)
    yield Attack("a column", encoded(image.resize((1, 3000)), "JPEG"), fine=True)
    yield Attack("16 bits a channel", png(4, 4, zlib.compress(bytes(4 * (1 + 24))), depth=16), fine=True)


NAMES = [
    *("../../etc/passwd", "..\\..\\windows\\win.ini", "/etc/shadow", "C:\\a.jpg", "a\0b.jpg", "\0", "", " ", "."),
    *("..", "x" * 3000, "é" * 300 + ".jpg", "<img src=x onerror=alert(1)>.jpg", '"><script>alert(1)</script>.png'),
    *("${jndi:ldap://a}", "{{7*7}}.jpg", "a\r\nSet-Cookie: b=c.jpg", "con.jpg", "%2e%2e%2fa.jpg", "\u202egpj.exe"),
]
"""Names of files."""


def named() -> Iterator[Attack]:
    whole = encoded(noise(), "JPEG")
    for number, name in enumerate(NAMES):
        yield Attack(f"name {number}", whole, fine=None, file_name=name)


ATTACKS = [*bombs(), *truncated(), *others(), *odd(), *named()]
