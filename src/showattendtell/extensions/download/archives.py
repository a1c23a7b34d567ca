"""Fetch archives over HTTP and resume (RFC 9110, Range), verify them, and unpack members of zip and tar files."""

import hashlib
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import requests
from pydantic import Field
from rich.filesize import decimal

from showattendtell.errors import UserError, first_line
from showattendtell.settings import PositiveInt, Text

Part = Literal["images", "captions", "splits"]
Checksum = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")]

# zipfile raises RuntimeError for encryption and for unknown compression
DAMAGES = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError)


TIMEOUT = 60.0
"""Seconds without data after which a connection counts as broken."""

LONGEST_WAIT = 120.0
"""Largest number of seconds between two attempts; they double from half a second."""

CHUNK = 2**15
"""Bytes that are written at once."""

BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Status codes that are worth a retry."""

Report = Callable[[int, int | None], None]
"""Takes the number of bytes that are here, and the size of the file, if known."""


class Archive(NamedTuple):
    """A zip or tar file of a data set.

    part: the part of the data set that it holds.
    file: its file name.
    members: patterns of the files to unpack; they keep their folders.
    base: URL of the folder that holds it; null if it has none and must be requested.
    num_bytes: its size; null if unknown or not fixed.
    checksum: `sha256:...` or `md5:...`; null if unknown or not fixed.
    places: files or folders in the root; if one exists, the user has already put the archive's content there.
    """

    part: Part
    file: Text
    members: Sequence[Text]
    base: Text | None = None
    num_bytes: PositiveInt | None = None
    checksum: Checksum | None = None
    places: Sequence[Text] = ()

    def find_difference(self, path: Path) -> str | None:
        """Return how a file differs from the published archive, such as `has 3 bytes instead of 5`; None if equal."""
        num_bytes = path.stat().st_size
        if self.num_bytes not in (None, num_bytes):
            return f"has {num_bytes:,} bytes instead of {self.num_bytes:,}"
        if self.checksum is None:
            return None
        algorithm, _, expected = self.checksum.partition(":")
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, algorithm).hexdigest()
        return None if checksum == expected else f"has the {algorithm} checksum {checksum} instead of {expected}"


def fetch(url: str, path: Path, retries: int, report: Report, warn: Callable[[str], None]) -> bool:
    """Download a file; return False if the address has no such file.

    The bytes are in `NAME.part` until the file is complete; the next attempt asks for the rest. A file that changes
    between two attempts is found by its size and checksum, or when it is unpacked.

    Args:
        retries: the largest number of consecutive attempts without new data.
        report: gets the progress.
        warn: gets a message before each retry.

    Raises:
        UserError: another failure, or too many attempts.
    """
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = _size(part)
        try:
            found = _receive(url, part, report)
            break
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            failures = failures + 1 if _size(part) <= before else 1
            if failures > retries:
                raise UserError(
                    f"{url} cannot be downloaded ({error}); {decimal(_size(part))} are here: run the command again to "
                    "resume, or set another source with mirror=..."
                ) from None
            wait = min(2 ** (failures - 2), LONGEST_WAIT)
            warn(f"{url}: {error}; trying again in {wait:g} s")
            time.sleep(wait)
        except requests.RequestException as error:
            raise UserError(f"{url} cannot be downloaded ({error}); set another source with mirror=...") from None
    if found:
        part.replace(path)
    return found


def _receive(url: str, part: Path, report: Report) -> bool:
    """Send one request for the missing bytes and append the answer to the partial file."""
    start = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code in (404, 410):
            return False
        if response.status_code in BUSY:
            raise requests.ConnectionError(f"the server answers {response.status_code} {response.reason}")
        is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status_code in (206, 416) and not is_rest:
            part.unlink(missing_ok=True)
            raise requests.ConnectionError("the server has another file now")
        response.raise_for_status()
        start = start if is_rest else 0
        length = int(response.headers.get("Content-Length", 0))
        total = start + length if length else None
        with part.open("ab" if is_rest else "wb") as file:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                report(file.tell(), total)
    if total not in (None, _size(part)):
        raise requests.ConnectionError("the answer ends before the file does")
    return True


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def unpack(path: Path, root: Path, patterns: Sequence[str]) -> list[str]:
    """Unpack the members of an archive that match a pattern, except files that exist with the right size.

    Returns:
        The names of the members that match.

    Raises:
        UserError: the archive is damaged, has no member for a pattern, or has one that lies outside of the root; or a
            file of another size exists.
    """
    try:
        with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else tarfile.open(path) as archive:
            return _unpack(archive, path, root, patterns)
    except DAMAGES as error:
        raise UserError(
            f"{path} cannot be unpacked ({first_line(error) or type(error).__name__}); get it again"
        ) from None


def _unpack(archive: Any, path: Path, root: Path, patterns: Sequence[str]) -> list[str]:
    is_zip = isinstance(archive, zipfile.ZipFile)
    infos = archive.infolist() if is_zip else [info for info in archive if info.isfile()]
    sizes = {(info.filename if is_zip else info.name): (info.file_size if is_zip else info.size) for info in infos}
    for name in sizes:
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise UserError(f"{path} has the member {name}, which lies outside of {root}; nothing was unpacked")
    names = [name for name in sizes if any(fnmatchcase(str(PurePosixPath(name)), pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(fnmatchcase(str(PurePosixPath(name)), pattern) for name in names):
            raise UserError(f"{path} has no {pattern}; get the published archive")
    targets = {name: root / PurePosixPath(name) for name in names}
    missing = [name for name in names if not _is_unpacked(targets[name], sizes[name])]
    for name in missing:
        target = targets[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.part")
        partial.unlink(missing_ok=True)  # a symbolic link of this name would be followed
        with archive.open(name) if is_zip else archive.extractfile(name) as packed, partial.open("xb") as file:
            shutil.copyfileobj(packed, file)
        partial.replace(target)
    return [str(PurePosixPath(name)) for name in names]


def _is_unpacked(target: Path, size: int) -> bool:
    """Return whether there is a file of this size; raise `UserError` if there is something else, which is kept."""
    exists = target.exists() or target.is_symlink()
    if exists and not (target.is_file() and target.stat().st_size == size):
        raise UserError(f"{target} exists, and differs from the file in the archive; remove it")
    return exists
