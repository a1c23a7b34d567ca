"""Limits on the work of decoding an image.

A small file can take hours to decode. The limits are on the structure of a file and on the number of reads, not on
time, so that every machine accepts the same files.
"""

import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

FORMATS = {
    "JPEG": ".jpg .jpeg .jpe .jfif .mpo",
    "PNG": ".png .apng",
    "WEBP": ".webp",
    "GIF": ".gif",
    "BMP": ".bmp",
    "TIFF": ".tif .tiff",
    "AVIF": ".avif .avifs",
    "JPEG2000": ".jp2 .j2k .jpc .jpf .jpx .j2c",
    "HEIF": ".heic .heics .heif .heifs .hif",
    "PPM": ".ppm .pgm .pbm .pnm .pfm",
}
"""Supported image formats by Pillow's names, and the suffixes of their files. MPO files are opened as JPEG; HEIF needs
the package pillow-heif. Others are not supported: Pillow starts Ghostscript for EPS, and decodes some in Python."""

SUFFIXES = frozenset(" ".join(FORMATS.values()).split())
"""Suffixes of the files that are found in folders."""

HEIF = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1|heif)", re.DOTALL)
"""The beginning of a HEIC file."""

HEIC = "pip install 'showattendtell[heic]'"

FILE_MEGABYTES = 16.0
"""Default maximum size of a photograph from outside this machine: an upload, or the content of a URL."""

MEGAPIXELS = 64.0
"""Default maximum number of pixels of these photographs, in millions. A larger baseline JPEG is decoded at a fraction
of its size."""

MAX_PIXELS = 178_956_970
"""Maximum number of pixels of a photograph on this machine, which is Pillow's limit. A larger baseline JPEG is decoded
at a fraction of its size."""

REDUCED_PIXELS = 1_000_000_000
"""Maximum number of pixels of such a JPEG, whose only scan is decoded as it is read."""

SCANS = 100
"""Maximum number of scans of a JPEG. Encoders write about 10, optimizers up to 64; libtiff has the same limit."""

SCAN_PIXELS = 4_000_000_000
"""Maximum of scans x pixels of a JPEG: 22 scans at Pillow's limit of 179 million pixels, 62 at 64 million.

A scan takes 0.6 to 0.9 ms per million pixels even if it holds no data (libjpeg-turbo 3.2 on one core), so the slowest
image within both limits takes 3 to 4 seconds."""

SEGMENTS = 20_000
"""Maximum number of segments of a JPEG. Metadata of 16 MB take 250."""

EXIF_BYTES = 1_000_000
"""Maximum bytes of EXIF data. A JPEG segment holds 64 kB; Pillow parses 1 MB in 0.3 seconds."""

TAG_VALUES = 65_536
"""Maximum number of values in a tag of a TIFF, such as strip offsets. Pillow converts them one by one in Python."""

READS = 250_000
"""Maximum number of calls of `read` on a file: 500 MB of a PNG in chunks of 8 kB."""

SLOW_COMPRESSION = {"BMP": (1, 2), "TIFF": ("jpeg", "tiff_jpeg")}
"""Formats and their kinds of compression that take long: Pillow decodes a BMP of run lengths in Python, and each strip
of a TIFF may have all scans of a JPEG, since strips may share data."""

MARKER = re.compile(rb"\xff([^\0\x01\xff\xd0-\xd7])")
"""A JPEG marker that begins a segment: neither an escaped byte of coded data, nor a restart marker, nor padding."""

START, END, SCAN, EXIF = 0xD8, 0xD9, 0xDA, 0xE1
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
SEQUENTIAL = (0xC0, 0xC1)
ARITHMETIC = range(0xC9, 0xD0)

BYTE_TYPES = (1, 2, 6, 7)
"""TIFF types of one byte, which Pillow converts all at once."""


class CostlyImageError(ValueError):
    """An image takes too long to decode. The message completes the sentence 'image NAME ...'."""


def too_large(max_pixels: float, is_baseline: bool = False) -> CostlyImageError:
    """Return the error for an image of too many pixels."""
    others = "" if is_baseline else " or a baseline JPEG of one scan"
    return CostlyImageError(f"has more than {max_pixels / 1e6:g} million pixels; give a smaller copy{others}")


class CountingReader(io.BufferedReader):
    """File that raises `CostlyImageError` after `READS` calls of `read`."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > READS:
            raise CostlyImageError("is stored in too many small parts; save it again in an image editor")
        return super().read(size)


@contextmanager
def bounded_open(raw: Any, max_pixels: float = MAX_PIXELS, decoded: bool = True) -> Iterator[Image.Image]:
    """`PIL.Image.open` for binary files from untrusted sources.

    A baseline JPEG of more than `max_pixels` has the size at which it will be decoded.

    Args:
        raw: the file, unbuffered or in memory.
        max_pixels: maximum number of pixels.
        decoded: whether the image will be decoded; false to read the header only.

    Raises:
        CostlyImageError: the image exceeds a limit.
    """
    is_jpeg = raw.read(3) == b"\xff\xd8\xff"
    raw.seek(0)
    if is_jpeg and decoded:
        check_jpeg(raw.read())
        raw.seek(0)
    reader = CountingReader(raw)
    _check_tiff(reader)
    reader.seek(0)
    with _open(reader, is_jpeg) as image:
        if image.width * image.height > max_pixels:
            _reduce(image, max_pixels)
        if image.info.get("compression") in SLOW_COMPRESSION.get(image.format or "", ()):
            raise CostlyImageError(f"is a {image.format} whose compression takes long; save it again as PNG or JPEG")
        _check_exif(len(image.info.get("exif") or b""))
        yield image


def _open(reader: CountingReader, is_jpeg: bool) -> Image.Image:
    Image.init()
    try:
        if is_jpeg:
            return JpegImageFile(reader)  # without Pillow's limit of pixels, see `_reduce`
        return Image.open(reader, formats=[name for name in FORMATS if name in Image.OPEN])
    except Image.DecompressionBombError:
        raise too_large(MAX_PIXELS) from None
    except (UnidentifiedImageError, SyntaxError):
        reader.seek(0)
        head = reader.read(12)
        reader.seek(0)
        if not HEIF.match(head):
            raise OSError("it is empty or of no known image format") from None
        if "HEIF" in Image.OPEN:
            raise OSError("it is a damaged HEIC photograph") from None
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            raise CostlyImageError(f"is a HEIC photograph, which needs the package pillow-heif; run {HEIC}") from None
        register_heif_opener()
        return _open(reader, is_jpeg)


def _reduce(image: Image.Image, max_pixels: float) -> None:
    """Have a baseline JPEG decoded at a half, a quarter or an eighth of its size.

    Raises:
        CostlyImageError: it is too large even then, or has another format.
    """
    pixels, most = image.width * image.height, min(max_pixels, 1e6 * MEGAPIXELS)
    factor = next((factor for factor in (2, 4, 8) if pixels / factor**2 <= 0.99 * most), None)
    is_baseline = isinstance(image, JpegImageFile) and "progressive" not in image.info
    if factor is None or not is_baseline:
        raise too_large(max_pixels, is_baseline)
    image.draft(None, (image.width // factor, image.height // factor))


def _check_exif(num_bytes: int) -> None:
    if num_bytes > EXIF_BYTES:
        raise CostlyImageError(f"has more than {EXIF_BYTES:,} bytes of EXIF data; save it again without them")


def _check_tiff(reader: CountingReader) -> None:
    """Raise `CostlyImageError` for a TIFF with too many values in a tag of its first directory."""
    # A header is the byte order, the version (42, or 43 for BigTIFF) and the offset of the first directory. A directory
    # is a count and entries of 12 bytes: tag (2), type (2), number of values (4), value or offset (4).
    head = reader.read(8)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    if not order or len(head) < 8:
        return
    if 43 in head[2:4]:
        raise CostlyImageError("is a BigTIFF; save it again as TIFF, PNG or JPEG")
    (offset,) = struct.unpack_from(f"{order}L", head, 4)
    reader.seek(offset)
    (entries,) = struct.unpack(f"{order}H", reader.read(2).ljust(2, b"\0"))
    directory = reader.read(12 * entries)
    for kind, values in struct.iter_unpack(f"{order}2xHL4x", directory[: len(directory) // 12 * 12]):
        if kind not in BYTE_TYPES and values > TAG_VALUES:
            raise CostlyImageError(f"is a TIFF with {values:,} values in one tag; save it again as PNG or JPEG")


def check_jpeg(content: bytes) -> None:
    """Raise `CostlyImageError` for a JPEG that takes too long to decode.

    A scan of a few bytes is a pass over all pixels.
    """
    scans = pixels = exif = 0
    components, is_streamed = b"", True  # else the decoder holds the coefficients of all pixels in memory
    for i, (marker, start, end) in enumerate(_segments(content)):
        if i >= SEGMENTS:
            raise CostlyImageError(f"has more than {SEGMENTS:,} segments; save it again in an image editor")
        if marker in FRAMES:
            # a frame header: length (2 bytes), precision (1), height (2), width (2), number of components (1)
            height, width = struct.unpack(">HH", content[start + 3 : start + 7].ljust(4, b"\0"))
            pixels = max(pixels, width * height)
            components = content[start + 7 : start + 8]
            is_streamed &= marker in SEQUENTIAL
            if marker in ARITHMETIC:  # where a few bytes describe any number of coefficients
                raise CostlyImageError("is a JPEG with arithmetic coding; save it again in an image editor")
        scans += marker == SCAN
        is_streamed &= marker != SCAN or content[start + 2 : start + 3] == components
        if marker == EXIF and content[start + 2 : start + 6] == b"Exif":
            exif += end - start
    _check_exif(exif)
    max_pixels = REDUCED_PIXELS if is_streamed else MAX_PIXELS
    if pixels > max_pixels:
        raise too_large(max_pixels, is_streamed)
    max_scans = max(1, min(SCANS, SCAN_PIXELS // max(pixels, 1)))
    if scans > max_scans:
        raise CostlyImageError(
            f"has {scans:,} scans and takes too long to decode; save it again as a JPEG with at most {max_scans} scans"
        )


def _segments(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment up to the end of the image; coded data after a segment are skipped."""
    position = 2
    while (match := MARKER.search(content, position)) and (marker := match[1][0]) != END:
        start = match.end()
        length = 0 if marker == START else max(int.from_bytes(content[start : start + 2]), 2)
        position = start + length
        yield marker, start, position
