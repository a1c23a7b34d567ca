"""HTTP downloads that keep partial files and resume them after connection errors."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import requests
from rich.filesize import decimal

from showattendtell.data.download.archives import Archive
from showattendtell.errors import UserError

CHUNK = 2**15
"""Bytes that are written at once; fewer than these are lost when the line breaks."""
TIMEOUT = 60.0
"""Seconds without data after which a connection counts as broken."""
BACKOFF = 0.5
"""Seconds before the second retry; doubled for every further one."""
LONGEST_WAIT = 120.0
"""Maximum seconds to wait, even if the server asks for more."""
BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Response codes that are worth a retry."""

Tell = Callable[[int, int | None], None]
"""Takes the number of bytes available so far, and the size of the whole file (None: unknown)."""


class NotFoundError(Exception):
    """The URL has no such file."""


class TransferError(Exception):
    """A temporary failure, retry after at least `wait` seconds: a connection error or a busy server."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


class PartialDownload:
    """The first bytes of a file: `NAME.part`, with `NAME.part.json`, which identifies the complete file.

    num_bytes: size of the complete file, None if the server does not report it.
    """

    def __init__(self, path: Path, url: str):
        self.path = path.with_name(f"{path.name}.part")
        self._note = path.with_name(f"{path.name}.part.json")
        self.url = url
        self.validator: str | None = None
        self.num_bytes: int | None = None
        self._read_note()

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_whole(self) -> bool:
        return self.num_bytes is not None and self.size == self.num_bytes

    def start(self, validator: str | None, num_bytes: int | None) -> None:
        """Empty the partial file, and start the version that `validator` identifies."""
        self.path.write_bytes(b"")
        self.validator, self.num_bytes = validator, num_bytes
        note = {"url": self.url, "validator": validator, "num_bytes": num_bytes}
        self._note.write_text(json.dumps(note), encoding="utf-8")

    def finish(self, path: Path) -> None:
        """Rename the complete file to its final name."""
        self.path.replace(path)
        self._note.unlink(missing_ok=True)

    def _read_note(self) -> None:
        """Resume the partial file of an earlier run if its note identifies it, else start from zero."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            if note["url"] == self.url:
                self.validator, self.num_bytes = note["validator"], note["num_bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            pass


def fetch(url: str, path: Path, num_bytes: int | None, retries: int, tell: Tell, warn: Callable[[str], None]) -> None:
    """Download `url` to the file `path`; `tell` reports progress, and `warn` is called before each retry.

    Resumes an interrupted download if the server still has the same file: it sends `Range` with the file's `ETag` or
    date in `If-Range` (RFC 9110), and requests the whole file if it has neither.
    `retries` is the maximum number of consecutive failures without new data.
    Raises `NotFoundError` if the URL has no such file, and `UserError` if a retry is useless.
    """
    beginning = PartialDownload(path, url)
    farthest, failures = beginning.size, 0
    with requests.Session() as session:
        while not beginning.is_whole:
            try:
                _go_on(session, url, beginning, num_bytes, tell)
                break
            except TransferError as fault:
                failures = failures + 1 if beginning.size <= farthest else 1
                farthest = max(farthest, beginning.size)
                if failures > retries:
                    raise UserError(
                        f"{url} cannot be fetched ({fault}); {decimal(beginning.size)} are here: run the command again "
                        "to go on from there, or name another place with mirror=..."
                    ) from None
                wait = max(fault.wait, min(BACKOFF * 2 ** (failures - 1), LONGEST_WAIT))
                warn(f"{url}: {fault}; trying again in {wait:g} s")
                time.sleep(wait)
    beginning.finish(path)


def _go_on(session: requests.Session, url: str, beginning: PartialDownload, num_bytes: int | None, tell: Tell) -> None:
    """Send one request for the missing bytes, and write the response."""
    headers = {"Accept-Encoding": "identity"}
    if beginning.size and beginning.validator:
        headers |= {"Range": f"bytes={beginning.size}-", "If-Range": beginning.validator}
    try:
        with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            _refuse_status(response, beginning)
            _receive(response, beginning, num_bytes, tell)
    except requests.exceptions.SSLError as fault:
        raise UserError(f"{url} is not secure ({_reason(fault)}); name another place with mirror=...") from None
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as fault:
        raise TransferError(_reason(fault)) from None
    except requests.RequestException as fault:
        raise UserError(f"{url} cannot be fetched ({fault}); name another place with mirror=...") from None


def _refuse_status(response: requests.Response, beginning: PartialDownload) -> None:
    """Raise the error for a response without the file."""
    status = response.status_code
    if status in (404, 410):
        raise NotFoundError
    if status == 416:
        beginning.start(None, None)
        raise TransferError("the file there is shorter than what has come")
    if status in BUSY:
        wait = min(_number(response.headers.get("Retry-After", "")) or 0, LONGEST_WAIT)
        raise TransferError(f"the server answers {status} {response.reason}", wait)
    if status not in (200, 206):
        raise UserError(
            f"{beginning.url} cannot be fetched (the server answers {status} {response.reason}); name another place "
            "with mirror=..."
        )


def _receive(response: requests.Response, beginning: PartialDownload, num_bytes: int | None, tell: Tell) -> None:
    """Append the body of a response to the partial file, or replace it if the server sends the whole file."""
    if response.status_code == 206:
        _refuse_other_rest(response, beginning)
    else:
        sent = _number(response.headers.get("Content-Length", ""))
        if num_bytes and sent and sent != num_bytes:
            raise UserError(
                f"{beginning.url} has {sent:,} bytes instead of {num_bytes:,}: it is not the published file; name "
                "another place with mirror=..., or set the archive's num_bytes and checksum to null to take it"
            )
        beginning.start(_validator(response), sent)
    tell(beginning.size, beginning.num_bytes)
    with beginning.path.open("ab") as file:
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            tell(file.tell(), beginning.num_bytes)
    if beginning.num_bytes not in (None, beginning.size):
        raise TransferError("the answer ends before the file does")


def _refuse_other_rest(response: requests.Response, beginning: PartialDownload) -> None:
    """Discard the partial file if the response is not its remainder."""
    sent = response.headers.get("Content-Range", "")
    same = _validator(response) in (None, beginning.validator)
    if not (same and beginning.size and sent.startswith(f"bytes {beginning.size}-")):
        beginning.start(None, None)
        raise TransferError("the server sent the rest of another file")


def _validator(response: requests.Response) -> str | None:
    """Return a response's validator: a strong ETag, or the date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _reason(fault: BaseException) -> str:
    """Return the root cause of an error: `[Errno 111] Connection refused`."""
    while fault.__context__ is not None:
        fault = fault.__context__
    return str(fault) or type(fault).__name__


class DownloadCache:
    """State of the archives of one root.

    A fetched archive is kept here until it is unpacked. During unpacking a file `NAME.unpacking` exists; afterwards
    `NAME.unpacked` lists the unpacked files, one per line.
    """

    def __init__(self, root: Path):
        self.root = root
        self.folder = root / "downloads"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the cache for this process, and create it if it is missing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as fault:
            raise UserError(
                f"{self.folder} cannot be written ({fault.strerror}); set dataset.root to another folder"
            ) from None
        with os.fdopen(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is downloading into {self.root}; wait until it is done") from None
            yield

    def fetched(self, archive: Archive) -> Path:
        """Return the path of a downloaded archive."""
        return self.folder / archive.file

    def is_done(self, archive: Archive) -> bool:
        """Return whether an archive was unpacked and its files still exist."""
        record = self._record(archive, "unpacked")
        names = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        fits = all(any(fnmatchcase(name, pattern) for name in names) for pattern in archive.members)
        return fits and all((self.root / name).exists() for name in names)

    def is_placed(self, archive: Archive) -> bool:
        """Return whether the user has put an archive's content there."""
        return not self.has_begun(archive) and any((self.root / place).exists() for place in archive.places)

    def has_begun(self, archive: Archive) -> bool:
        """Return whether an archive is partly unpacked."""
        return self._record(archive, "unpacking").exists()

    def begin(self, archive: Archive) -> None:
        self._record(archive, "unpacking").touch()

    def finish(self, archive: Archive, names: Sequence[str]) -> None:
        """Record that an archive is unpacked, and remove it if it was fetched only for that."""
        unfinished = self._record(archive, "unpacking")
        unfinished.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        unfinished.replace(self._record(archive, "unpacked"))
        self.fetched(archive).unlink(missing_ok=True)

    def _record(self, archive: Archive, suffix: str) -> Path:
        return self.folder / f"{archive.file}.{suffix}"
