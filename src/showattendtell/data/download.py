"""Download of published data sets: resumable HTTP transfers, state of the archives, plan of the remaining work."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

import requests
from pydantic import Field
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table
from rich.text import Text as RichText

from showattendtell.data.archives import DamagedError, unpack
from showattendtell.errors import UserError
from showattendtell.settings import PositiveInt, Text, is_url

Part = Literal["images", "captions", "splits"]
Checksum = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")]


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
        """Return how a file differs from the published archive (`has 3 bytes instead of 5`); None if it does not."""
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


CHUNK = 2**15
"""Bytes that are written at once; if the connection breaks, fewer bytes than these are lost."""
TIMEOUT = 60.0
"""Seconds without data after which a connection counts as broken."""
BACKOFF = 0.5
"""Seconds before the first retry; doubled for every further one."""
LONGEST_WAIT = 120.0
"""Maximum seconds to wait, even if the server asks for more."""
BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Response codes that are worth a retry."""

Report = Callable[[int, int | None], None]
"""Takes the number of bytes available so far, and the size of the whole file, if known."""


class NotFoundError(Exception):
    """The URL has no such file."""


class TransferError(Exception):
    """A temporary failure, retry after at least `wait` seconds: a connection error or a busy server."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


class PartialDownload:
    """The first bytes of a download, `NAME.part`, and what identifies the complete file, `NAME.part.json`.

    Attributes:
        size: number of bytes downloaded.
        num_bytes: size of the complete file; None if unknown.
        validator: `ETag` or date of the complete file; None if unknown.
    """

    def __init__(self, path: Path, url: str):
        self.path = path.with_name(f"{path.name}.part")
        self.note = path.with_name(f"{path.name}.part.json")
        self.url = url
        self.validator: str | None = None
        self.num_bytes: int | None = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(self.note.read_text(encoding="utf-8"))
            if note["url"] == url:
                self.validator, self.num_bytes = note["validator"], note["num_bytes"]

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def start(self, validator: str | None, num_bytes: int | None) -> None:
        """Empty the partial file, and start the version that `validator` identifies."""
        self.path.write_bytes(b"")
        self.validator, self.num_bytes = validator, num_bytes
        note = {"url": self.url, "validator": validator, "num_bytes": num_bytes}
        self.note.write_text(json.dumps(note), encoding="utf-8")


def fetch(
    url: str, path: Path, num_bytes: int | None, retries: int, report: Report, warn: Callable[[str], None]
) -> None:
    """Download a file.

    An interrupted download resumes if the server still has the same file: the request has `Range`, and the `ETag` or
    date of the file in `If-Range` (RFC 9110). Without both the whole file is requested.

    Args:
        num_bytes: expected size.
        retries: maximum number of consecutive failures without new data.
        report: gets the progress.
        warn: gets a message before each retry.

    Raises:
        NotFoundError: the URL has no such file.
        UserError: another failure, which a retry does not solve.
    """
    partial_file = PartialDownload(path, url)
    largest, failures = partial_file.size, 0
    with requests.Session() as session:
        while partial_file.num_bytes is None or partial_file.size != partial_file.num_bytes:
            try:
                _request(session, url, partial_file, num_bytes, report)
                break
            except TransferError as error:
                failures = failures + 1 if partial_file.size <= largest else 1
                largest = max(largest, partial_file.size)
                if failures > retries:
                    raise UserError(
                        f"{url} cannot be downloaded ({error}); {decimal(partial_file.size)} are here: run the command "
                        "again to resume, or set another source with mirror=..."
                    ) from None
                wait = max(error.wait, min(BACKOFF * 2 ** (failures - 1), LONGEST_WAIT))
                warn(f"{url}: {error}; trying again in {wait:g} s")
                time.sleep(wait)
    partial_file.path.replace(path)
    partial_file.note.unlink(missing_ok=True)


def _request(
    session: requests.Session, url: str, partial_file: PartialDownload, num_bytes: int | None, report: Report
) -> None:
    """Send one request for the missing bytes, and write the response."""
    headers = {"Accept-Encoding": "identity"}
    if partial_file.size and partial_file.validator:
        headers |= {"Range": f"bytes={partial_file.size}-", "If-Range": partial_file.validator}
    try:
        with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            _refuse_status(response, partial_file)
            _receive(response, partial_file, num_bytes, report)
    except requests.exceptions.SSLError as error:
        raise UserError(f"{url} is not secure ({_reason(error)}); set another source with mirror=...") from None
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        raise TransferError(_reason(error)) from None
    except requests.RequestException as error:
        raise UserError(f"{url} cannot be downloaded ({error}); set another source with mirror=...") from None


def _refuse_status(response: requests.Response, partial_file: PartialDownload) -> None:
    """Raise the error for a response without the file."""
    status = response.status_code
    if status in (404, 410):
        raise NotFoundError
    if status == 416:
        partial_file.start(None, None)
        raise TransferError("the file there is shorter than what has come")
    if status in BUSY:
        wait = min(_number(response.headers.get("Retry-After", "")) or 0, LONGEST_WAIT)
        raise TransferError(f"the server answers {status} {response.reason}", wait)
    if status not in (200, 206):
        raise UserError(
            f"{partial_file.url} cannot be downloaded (the server answers {status} {response.reason}); "
            "set another source with mirror=..."
        )


def _receive(response: requests.Response, partial_file: PartialDownload, num_bytes: int | None, report: Report) -> None:
    """Append the body of a response to the partial file, or replace it if the server sends the whole file."""
    if response.status_code == 206:
        is_same = _validator(response) in (None, partial_file.validator) and partial_file.size
        if not (is_same and response.headers.get("Content-Range", "").startswith(f"bytes {partial_file.size}-")):
            partial_file.start(None, None)
            raise TransferError("the server sent the rest of another file")
    else:
        length = _number(response.headers.get("Content-Length", ""))
        if num_bytes and length and length != num_bytes:
            raise UserError(
                f"{partial_file.url} has {length:,} bytes instead of {num_bytes:,}: it is not the published file; set "
                "another source with mirror=..., or set the archive's num_bytes and checksum to null to take it"
            )
        partial_file.start(_validator(response), length)
    report(partial_file.size, partial_file.num_bytes)
    with partial_file.path.open("ab") as file:
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            report(file.tell(), partial_file.num_bytes)
    if partial_file.num_bytes not in (None, partial_file.size):
        raise TransferError("the answer ends before the file does")


def _validator(response: requests.Response) -> str | None:
    """Return a response's validator: a strong ETag, or the date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _reason(error: BaseException) -> str:
    """Return the root cause of an error: `[Errno 111] Connection refused`."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__


class DownloadCache:
    """Archives of a data set in `ROOT/downloads`, and which of them are unpacked.

    A downloaded archive is removed when it is unpacked. While it is unpacked there is a file `NAME.unpacking`;
    afterwards `NAME.unpacked` lists the unpacked files, one per line.
    """

    def __init__(self, root: Path):
        self.root = root
        self.folder = root / "downloads"

    def fetched(self, archive: Archive, suffix: str = "") -> Path:
        """Return the path of a downloaded archive, or of the file with that suffix."""
        return self.folder / f"{archive.file}{suffix}"

    def is_done(self, archive: Archive) -> bool:
        """Return whether an archive was unpacked and its files still exist."""
        record = self.fetched(archive, ".unpacked")
        names = record.read_text(encoding="utf-8", errors="replace").splitlines() if record.exists() else []
        fits = all(any(fnmatchcase(name, pattern) for name in names) for pattern in archive.members)
        return fits and all(os.path.exists(self.root / name) for name in names)  # False for a name that cannot be

    def has_begun(self, archive: Archive) -> bool:
        """Return whether an archive is partly unpacked."""
        return self.fetched(archive, ".unpacking").exists()

    def begin(self, archive: Archive) -> None:
        """Record that an archive is partly unpacked."""
        self.fetched(archive, ".unpacking").touch()

    def finish(self, archive: Archive, names: Sequence[str]) -> None:
        """Record the unpacked files of an archive, and remove the archive if it was downloaded."""
        unfinished = self.fetched(archive, ".unpacking")
        unfinished.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        unfinished.replace(self.fetched(archive, ".unpacked"))
        self.fetched(archive).unlink(missing_ok=True)


class ArchiveState(StrEnum):
    """State of an archive, as `print_plan` shows it."""

    DONE = "complete"
    UNPACK = "to be unpacked"
    FETCH = "to be downloaded"
    REQUEST = "on request"


class DownloadStep(NamedTuple):
    """An archive and its state.

    source     file to unpack, once it exists
    addresses  URLs to try, in this order
    """

    archive: Archive
    state: ArchiveState
    source: Path
    addresses: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of the archive, 0 if unknown."""
        return self.archive.num_bytes or (self.source.stat().st_size if self.source.exists() else 0)


def make_plan(
    publication: Publication, cache: DownloadCache, parts: Sequence[Part] | None, mirror: str | None
) -> list[DownloadStep]:
    """Return a step for each archive of the chosen parts.

    Args:
        parts: None for all.
        mirror: the URL of a folder, which is tried first, or a local folder with archives, or one of them.

    Raises:
        UserError: a part is unknown, or a local mirror is missing.
    """
    archives = publication.archives.values()
    available = sorted({archive.part for archive in archives})
    for part in parts or ():
        if part not in available:
            raise UserError(f"parts={part}: this data set has no {part}; available: {', '.join(available)}")
    remote = mirror if mirror and is_url(mirror) else None
    local_files: dict[str, Path] = {}
    if mirror and not remote:
        source, names = Path(mirror).expanduser(), [archive.file for archive in archives]
        if source.is_file() and source.name not in names:
            raise UserError(f"mirror={mirror} is not an archive of the data set, which has {', '.join(names)}")
        if not (source.is_file() or source.is_dir()):
            raise UserError(f"mirror={mirror} is neither an http address nor a folder or file that exists")
        local_files = {source.name: source} if source.is_file() else {name: source / name for name in names}
    return [
        _step(archive, cache, local_files, remote) for archive in archives if parts is None or archive.part in parts
    ]


def _step(archive: Archive, cache: DownloadCache, local_files: Mapping[str, Path], mirror: str | None) -> DownloadStep:
    fetched, local = cache.fetched(archive), cache.root / archive.file
    existing = [path for path in (fetched, local, local_files.get(archive.file)) if path and path.is_file()]
    addresses = tuple(f"{base.rstrip('/')}/{archive.file}" for base in (mirror, archive.base) if base)
    if cache.is_done(archive):
        return DownloadStep(archive, ArchiveState.DONE, fetched)
    if existing:
        return DownloadStep(archive, ArchiveState.UNPACK, existing[0])
    if not cache.has_begun(archive) and any((cache.root / place).exists() for place in archive.places):
        return DownloadStep(archive, ArchiveState.DONE, fetched)
    return DownloadStep(archive, ArchiveState.FETCH if addresses else ArchiveState.REQUEST, fetched, addresses)


def print_plan(plan: Sequence[DownloadStep], publication: Publication) -> None:
    """Print the license, and the size and state of each archive."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"license: {publication.license}", markup=False)
    table = Table("archive", "part", Column("size", justify="right"), "", Column("from", overflow="fold"), box=None)
    for step in plan:
        size = decimal(step.num_bytes) if step.num_bytes else "unknown"
        origin = urlsplit(step.addresses[0]).netloc if step.addresses else ""
        origin = str(step.source) if step.state is ArchiveState.UNPACK else origin
        table.add_row(step.archive.file, step.archive.part, size, step.state, RichText(origin))
    console.print(table)


def required_space(plan: Sequence[DownloadStep], cache: DownloadCache) -> int:
    """Estimate the disk space in bytes that the plan needs, taking the unpacked files for as large as the archive.

    Partly unpacked archives are not included; `unpack` checks the space for them.
    """
    # At its peak an archive is here completely, together with its unpacked files and those of the archives before it.
    used = peak = 0
    for step in plan:
        if not cache.has_begun(step.archive) and step.state in (ArchiveState.FETCH, ArchiveState.UNPACK):
            num_received = PartialDownload(step.source, "").size if step.state is ArchiveState.FETCH else step.num_bytes
            peak = max(peak, used + max(0, step.num_bytes - num_received) + step.num_bytes)
            used += step.num_bytes
    return peak


def check_requests(plan: Sequence[DownloadStep], publication: Publication) -> None:
    """Raise `UserError` if there are archives without a URL; the message says how to request them."""
    files = [step.archive.file for step in plan if step.state is ArchiveState.REQUEST]
    if files:
        raise UserError(
            f"{' and '.join(files)} {'has' if len(files) == 1 else 'have'} no public URL: {publication.request}, put "
            f"the files you receive into {publication.root}, and run the command again to unpack them"
        )


def acquire(step: DownloadStep, cache: DownloadCache, retries: int) -> None:
    """Download an archive unless it is available locally, verify it, and unpack it.

    A downloaded file that differs from the published one is renamed to `NAME.wrong`.

    Raises:
        UserError: one of these steps fails.
    """
    if step.state not in (ArchiveState.FETCH, ArchiveState.UNPACK):
        return
    archive, source = step.archive, step.source
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as progress:

            def bar(action: str) -> Report:
                task = progress.add_task(f"{action} {archive.file}", total=None)
                return lambda done, total: progress.update(task, completed=done, total=total)

            if step.state is ArchiveState.FETCH:
                _fetch(step, retries, bar("fetching"), progress.console)
            verified = bar("verifying")
            verified(0, None)
            if difference := archive.find_difference(source):
                raise DamagedError(difference)
            verified(step.num_bytes, step.num_bytes)
            names = unpack(source, cache.root, archive.members, bar("unpacking"), partial(cache.begin, archive))
            cache.finish(archive, names)
    except DamagedError as error:
        hint = "put the published file in its place"
        if source == cache.fetched(archive):
            moved = source.replace(source.with_name(f"{source.name}.wrong"))
            hint = (
                f"it is now {moved.name}: run the command again to fetch it once more, or set another source with "
                "mirror=..."
            )
        raise UserError(f"{source} {error}; {hint}") from None
    except OSError as error:
        raise UserError(
            f"{error.filename or cache.root}: {(error.strerror or str(error)).lower()}; fix this and run the command "
            "again to resume"
        ) from None


def _fetch(step: DownloadStep, retries: int, report: Report, console: Console) -> None:
    """Download an archive from the first URL that has it."""
    warn = partial(console.print, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for address in step.addresses:
        with suppress(NotFoundError):
            return fetch(address, step.source, step.archive.num_bytes, retries, report, warn)
    has = "has" if len(step.addresses) == 1 else "have"
    raise UserError(f"{' and '.join(step.addresses)} {has} no {step.archive.file}; set another source with mirror=...")
