"""Captions in the metadata of photographs, where photo managers and screen readers find them."""

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL.JpegImagePlugin import JpegImageFile

from showattendtell.errors import UserError, first_line
from showattendtell.runtime.files import atomic_write, write_errors
from showattendtell.settings import is_url

ORIGINAL = "_original"
"""End of the name of a copy, as ExifTool writes it; `exiftool -restore_original FILE` puts the copy back."""

XMP_KEYS = ("Xmp.dc.description", "Xmp.iptc.AltTextAccessibility")
IPTC_KEY, IPTC_CHARACTER_SET = "Iptc.Application2.Caption", "Iptc.Envelope.CharacterSet"
UTF8 = "\x1b%G"
"""The escape sequence by which IPTC metadata declare UTF-8."""

WRITABLE = "give a JPEG, PNG, WebP or TIFF file that is not damaged"

MP_ENTRIES = 0xB002
"""The tag of the list of pictures in an index of the Multi-Picture Format."""

LANGUAGE = re.compile(r'(^|, )lang="[^"]*"')
"""The language in front of each text of an XMP language alternative, as exiv2 prints it."""


def require_exiv2() -> Any:
    """Return the package exiv2, with its warnings off.

    Raises:
        UserError: it is not installed.
    """
    try:
        import exiv2
    except ImportError:
        raise UserError("formats=[xmp] needs the package exiv2; run pip install 'showattendtell[xmp]'") from None
    exiv2.LogMsg.setLevel(exiv2.LogMsg.Level.mute)
    return exiv2


def has_description(path: str) -> bool:
    """Return whether a photograph has a description, see `write_description`; False if its metadata cannot be read."""
    exiv2 = require_exiv2()
    try:
        image = exiv2.ImageFactory.open(os.fsencode(path).decode())
        image.readMetadata()
        return any(_descriptions(image))
    except (exiv2.Exiv2Error, UnicodeDecodeError):
        return False


def _writes(image: Any, kind: Any) -> bool:
    """Return whether exiv2 can write this kind of metadata into an image."""
    return image.checkMode(kind) == require_exiv2().AccessMode.amReadWrite


def _descriptions(image: Any) -> Iterator[str]:
    """Yield the text of each field that may describe an image; blank ones are empty."""
    for metadata, keys in (
        (image.xmpData(), XMP_KEYS),
        (image.iptcData(), (IPTC_KEY,)),
        (image.exifData(), ("Exif.Image.ImageDescription",)),
    ):
        for key in keys:
            if key in metadata:
                yield LANGUAGE.sub("", metadata[key].toString()).strip(" \0")


def write_description(path: str, text: str, overwrite: bool = False) -> bool:
    """Write a caption into a JPEG, PNG, WebP or TIFF file: as XMP `dc:description` and
    `Iptc4xmpCore:AltTextAccessibility`, both in the language `x-default`, and as IPTC Caption/Abstract. A WebP has no
    IPTC.

    The file is replaced at once when all of it is written. Pixels are not encoded again. The original is kept as
    `NAME_original`; if there is such a file from an earlier change, it stays.

    Args:
        overwrite: also replace a description that the file has in one of these fields or in its EXIF data, which are
            never changed.

    Returns:
        False if the file has a description, and was left alone.

    Raises:
        UserError: the file is of another format, or cannot be read or written.
    """
    exiv2, file_path = require_exiv2(), Path(path).resolve()
    with write_errors(file_path, "change its permissions"), file_path.open("r+b") as photograph:  # raises if read-only
        content, mode = photograph.read(), file_path.stat().st_mode
    try:
        image = exiv2.ImageFactory.open(content)
        if not _writes(image, exiv2.MetadataId.Xmp):
            raise UserError(f"formats=[xmp] does not write into {path}; {WRITABLE}")
        image.readMetadata()
        if not overwrite and any(_descriptions(image)):
            return False
        for key in XMP_KEYS:
            image.xmpData()[key] = exiv2.LangAltValue({"x-default": text})
        iptc = image.iptcData()
        if _writes(image, exiv2.MetadataId.Iptc) and iptc.detectCharset():  # None for other encodings
            iptc[IPTC_KEY], iptc[IPTC_CHARACTER_SET] = text, UTF8
        image.writeMetadata()
        changed = _with_further_pictures(bytearray(image.io().mmap()), content)
    except (struct.error, exiv2.Exiv2Error) as error:
        raise UserError(f"the metadata of {path} cannot be written ({first_line(error)}); {WRITABLE}") from None
    original = file_path.with_name(file_path.name + ORIGINAL)
    with suppress(OSError):  # without hard links the file is renamed instead, and for a moment has no other name
        os.link(file_path, original)
    with (
        write_errors(file_path, "change its permissions"),
        atomic_write(file_path, keep=None if original.exists() else original) as file,
    ):
        os.fchmod(file.fileno(), mode)
        file.write(changed)
    return True


def _with_further_pictures(changed: bytearray, content: bytes) -> bytearray:
    """Correct the index of the pictures in a JPEG with several, such as a gain map (CIPA DC-007, Multi-Picture Format).

    The index has their offsets from itself and the size of the first picture; exiv2 moves other segments in front of it
    without changing them.
    """
    if not content.startswith(b"\xff\xd8\xff"):
        return changed
    old_start, new_start = (JpegImageFile(BytesIO(data)).info.get("mpoffset") for data in (content, changed))
    if old_start is None or new_start is None:
        return changed
    longer = len(changed) - len(content)
    order = "<" if changed[new_start : new_start + 2] == b"II" else ">"
    # a TIFF header with the offset of a directory, of entries of 12 bytes: tag, type, length and offset of the value
    (directory,) = struct.unpack_from(f"{order}4xL", changed, new_start)
    (entries,) = struct.unpack_from(f"{order}H", changed, new_start + directory)
    for entry in range(entries):
        tag, length, value = struct.unpack_from(f"{order}H2xLL", changed, new_start + directory + 2 + 12 * entry)
        pictures = range(new_start + value, new_start + value + length, 16) if tag == MP_ENTRIES else ()
        for place in pictures:  # attributes, size, offset, and two numbers of other pictures
            size, offset = struct.unpack_from(f"{order}4xLL", changed, place)
            updated = (size, offset + longer - (new_start - old_start)) if offset else (size + longer, 0)
            struct.pack_into(f"{order}LL", changed, place + 4, *updated)
    return changed


class DescriptionWriter:
    """Writes captions into photographs and counts them.

    Args:
        paths: the photographs.
        overwrite: see `write_description`.
        errors: gets the errors about photographs into which nothing can be written.

    Raises:
        UserError: exiv2 is not installed, or a place is a URL.
    """

    def __init__(self, paths: Iterable[str], overwrite: bool, errors: list[str]):
        require_exiv2()
        url = next(filter(is_url, paths), None)
        if url:
            raise UserError(f"formats=[xmp] writes into files, and {url} is none; download it first")
        self.overwrite, self.errors = overwrite, errors
        self.written = self.left = 0

    def __call__(self, path: str, caption: str) -> None:
        try:
            is_written = write_description(path, caption, self.overwrite)
        except UserError as error:
            self.errors.append(str(error))
            return
        self.written += is_written
        self.left += not is_written

    def pending(self, paths: Sequence[str]) -> set[str]:
        """Return the photographs that would get a description, and count the others."""
        pending = {path for path in paths if self.overwrite or not has_description(path)}
        self.left += len(paths) - len(pending)
        return pending

    def summary(self) -> list[str]:
        """Return sentences on what was written and what was not."""
        counts = {
            f"descriptions written into photographs, originals kept as NAME{ORIGINAL}": self.written,
            "photographs left alone since they have a description; overwrite=true replaces it": self.left,
        }
        return [f"{label}: {count:,}" for label, count in counts.items() if count]
