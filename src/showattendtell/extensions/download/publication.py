"""Published data sets: fetch their archives over HTTP and resume (RFC 9110, Range), verify and unpack them."""

import hashlib
import os
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import requests
from pydantic import Field
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from showattendtell.errors import UserError, first_line
from showattendtell.runtime.files import expand_home, lock_file
from showattendtell.settings import NonNegativeInt, PositiveInt, Text, is_url

Part = Literal["images", "captions", "splits"]
Checksum = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")]

RETRIED = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
"""Errors after which a transfer is resumed."""

# zipfile raises RuntimeError for encryption and for unknown compression, and ValueError for names that are not UTF-8
DAMAGES = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, ValueError)

TIMEOUT = 60.0
"""Seconds without data after which a connection counts as broken."""

LONGEST_WAIT = 120.0
"""Largest number of seconds between two attempts; they double from half a second."""

CHUNK = 2**15
"""Bytes that are written at once."""

BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Status codes that are worth a retry."""

FOLDER = "downloads"
"""Folder in the root for archives, and for NAME.unpacked with the names of an archive's unpacked files, which is empty
while it is being unpacked."""


@dataclass
class DownloadConfig:
    """Settings of `download`.

    Attributes:
        dataset: the data set to fetch.
        parts: which of images, captions and splits (Karpathy's) to fetch; by default all that the data set has.
        mirror: another source of the archives: the URL of a folder, which is tried first, or a local folder.
        retries: how often a transfer is retried in a row without receiving new data; the pause doubles each time.
    """

    dataset: Text
    parts: Annotated[Sequence[Part], Field(min_length=1)] | None
    mirror: Text | None
    retries: NonNegativeInt


class Archive(NamedTuple):
    """A zip or tar file of a data set.

    part: the part of the data set that it holds.
    file: its file name.
    members: patterns of the files to unpack; they keep their folders.
    base: URL of the folder that holds it; null if it has none and must be requested.
    num_bytes: its size; null if unknown or not fixed.
    checksum: `sha256:...` or `md5:...`; null if unknown or not fixed.
    """

    part: Part
    file: Text
    members: Sequence[Text]
    base: Text | None = None
    num_bytes: PositiveInt | None = None
    checksum: Checksum | None = None

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


class Publication(NamedTuple):
    """The archives of a data set.

    root: the folder to unpack into, and dataset.root of training.
    license: terms of use.
    archives: the archives by name.
    request: how to request archives without a URL.
    """

    root: Text
    license: Text
    archives: Mapping[str, Archive]
    request: Text | None = None


def download(publication: Publication, parts: Sequence[Part] | None, mirror: str | None, retries: int) -> None:
    """Fetch, verify and unpack what is missing of a data set. Finished archives are skipped.

    Args:
        parts: None for all.
        mirror: the URL of a folder, which is tried first, or a local folder with archives.

    Raises:
        UserError: a step fails, or archives have to be requested from their authors.
    """
    root, archives = expand_home(publication.root), publication.archives.values()
    chosen = [archive for archive in archives if parts is None or archive.part in parts]
    if not chosen:
        available = ", ".join(sorted({archive.part for archive in archives}))
        raise UserError(f"parts={','.join(parts or ())}: this data set has none of these; available: {available}")
    if mirror and not is_url(mirror) and not expand_home(mirror).is_dir():
        raise UserError(f"mirror={mirror} is neither an http address nor a folder that exists")
    lock = lock_file(root / FOLDER / "lock")
    if lock is None:
        raise UserError(f"another download into {root} is running; wait until it has ended")
    with lock:
        try:
            print(f"license: {publication.license}")
            requested = [archive.file for archive in chosen if not _complete(archive, root, mirror, retries)]
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{root}: {reason}; fix this and run the command again to resume") from None
    if requested:
        raise UserError(
            f"no public URL for {' and '.join(requested)}: {publication.request}, put the files you receive into "
            f"{root}, and run the command again to unpack them"
        )
    print(f"complete in {root}")


def _complete(archive: Archive, root: Path, mirror: str | None, retries: int) -> bool:
    """Fetch, verify and unpack an archive, as far as that is still to do. Return False if it has to be requested."""
    fetched, note = root / FOLDER / archive.file, root / FOLDER / f"{archive.file}.unpacked"
    size = decimal(archive.num_bytes) if archive.num_bytes else "unknown size"
    shown = f"{archive.file} ({archive.part}, {size})"
    unpacked = note.read_text(encoding="utf-8", errors="replace").splitlines() if note.exists() else []
    if unpacked and all(os.path.exists(root / name) for name in unpacked):
        print(f"{shown}: complete")
        return True
    folders, bases = [fetched.parent, root], [archive.base] if archive.base else []
    if mirror and is_url(mirror):
        bases.insert(0, mirror)
    elif mirror:
        folders.append(expand_home(mirror))
    file = next((folder / archive.file for folder in folders if (folder / archive.file).is_file()), fetched)
    if not file.exists() and not bases:
        print(f"{shown}: on request")
        return False
    print(f"{shown}: {'to be unpacked' if file.exists() else 'to be downloaded'}")
    if not file.exists():
        _fetch(archive, [f"{base.rstrip('/')}/{archive.file}" for base in bases], fetched, retries)
    if difference := archive.find_difference(file):
        raise UserError(f"{file} {difference}; remove it, and run the command again")
    note.write_text("")
    names = unpack(file, root, archive.members)
    note.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    if file == fetched:
        file.unlink()
    return True


def _fetch(archive: Archive, addresses: Sequence[str], path: Path, retries: int) -> None:
    """Download an archive from the first address that has it."""
    needed, free = 2 * (archive.num_bytes or 0), shutil.disk_usage(path.parent).free
    if free < needed:  # the archive and its files are on the disk at the same time
        raise UserError(
            f"{archive.file} and its content need {decimal(needed)}, and the disk of {path} has {decimal(free)} free; "
            "make room, choose another disk with dataset.root=..., or download less with parts=[...]"
        )
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as progress:
        if not any(fetch(address, path, retries, progress) for address in addresses):
            raise UserError(f"{' and '.join(addresses)}: not found; set another source with mirror=...")


def fetch(url: str, path: Path, retries: int, progress: Progress) -> bool:
    """Download a file; return False if the address has no such file.

    The bytes are in `NAME.part` until the file is complete; the next attempt asks for the rest. A file that changes
    between two attempts is found by its size and checksum, or when it is unpacked.

    Args:
        retries: the largest number of consecutive attempts without new data.
        progress: gets a task, and prints a message before each retry.

    Raises:
        UserError: another failure, or too many attempts.
    """
    part, task = path.with_name(f"{path.name}.part"), progress.add_task(f"fetching {path.name}", total=None)
    failures = 0
    with part.open("ab") as file:
        while True:
            before = file.tell()
            try:
                found = _receive(url, file, lambda total: progress.update(task, completed=file.tell(), total=total))
                break
            except requests.RequestException as error:
                failures = failures + 1 if file.tell() <= before else 1
                if failures > retries or not isinstance(error, RETRIED):
                    raise UserError(
                        f"{url} cannot be downloaded ({error}); {decimal(file.tell())} are here: run the command again "
                        "to resume, or set another source with mirror=..."
                    ) from None
                wait = min(2 ** (failures - 2), LONGEST_WAIT)
                message = f"{url}: {error}; trying again in {wait:g} s"
                progress.console.print(message, style="yellow", markup=False, soft_wrap=True)
                time.sleep(wait)
    if found:
        part.replace(path)
    elif not part.stat().st_size:
        part.unlink()
    return found


def _receive(url: str, file: BinaryIO, report: Callable[[int | None], None]) -> bool:
    """Send one request for the missing bytes and append the answer to the partial file."""
    start = file.tell()
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code in (404, 410):
            return False
        if response.status_code in BUSY:
            raise requests.ConnectionError(f"the server answers {response.status_code} {response.reason}")
        is_rest = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status_code != 416:
            response.raise_for_status()
        if not is_rest:
            start = file.seek(0)
            file.truncate()
        if response.status_code in (206, 416) and not is_rest:
            raise requests.ConnectionError("the server has another file now")
        length = int(response.headers.get("Content-Length", 0))
        total = start + length if length else None
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            report(total)
    if total not in (None, file.tell()):
        raise requests.ConnectionError("the answer ends before the file does")
    return True


def unpack(path: Path, root: Path, patterns: Sequence[str]) -> list[str]:
    """Unpack the members of an archive that match a pattern, except files that exist with the right size.

    Returns:
        The names of the members that match.

    Raises:
        UserError: the archive is damaged, has no member for a pattern, or has one that lies outside of the root; or a
            file of another size exists.
    """
    try:
        with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else tarfile.open(path) as packed:
            open_member: Any = packed.open if isinstance(packed, zipfile.ZipFile) else packed.extractfile
            if isinstance(packed, zipfile.ZipFile):
                sizes = {info.filename: info.file_size for info in packed.infolist()}
            else:
                sizes = {info.name: info.size for info in packed if info.isfile()}
            targets = _find_targets(path, sizes, root, patterns)
            for name in [name for name, target in targets.items() if not target.exists()]:
                targets[name].parent.mkdir(parents=True, exist_ok=True)
                partial = targets[name].with_name(f"{targets[name].name}.part")
                partial.unlink(missing_ok=True)  # a symbolic link of this name would be followed
                with open_member(name) as content, partial.open("xb") as file:
                    shutil.copyfileobj(content, file)
                partial.replace(targets[name])
    except DAMAGES as error:
        raise UserError(f"{path} cannot be unpacked ({first_line(error)}); get it again") from None
    return [str(PurePosixPath(name)) for name in targets]


def _find_targets(path: Path, sizes: Mapping[str, int], root: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """Return the file of each member of an archive that matches a pattern, by the sizes of the members. A file that
    exists has the same size."""
    for name in sizes:
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise UserError(f"{path} has the member {name}, which lies outside of {root}; nothing was unpacked")
    targets = dict[str, Path]()
    for pattern in patterns:
        matching = [name for name in sizes if fnmatchcase(str(PurePosixPath(name)), pattern)]
        if not matching:
            raise UserError(f"{path} has no {pattern}; get the published archive")
        targets |= {name: root / PurePosixPath(name) for name in matching}
    for name, target in targets.items():
        is_same = target.is_file() and target.stat().st_size == sizes[name]
        if not is_same and (target.exists() or target.is_symlink()):
            raise UserError(f"{target} exists, and differs from the file in the archive; remove it")
    return targets
