"""Gets a file over HTTP, however often the line breaks: what has come is kept, and the rest is asked for."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import requests
from rich.filesize import decimal

from showattendtell.errors import UserError

CHUNK = 2**15
"""Bytes that are written at once; fewer than these are lost when the line breaks."""
TIMEOUT = 60.0
"""Seconds of silence after which a line counts as broken."""
BACKOFF = 0.5
"""Seconds before the second retry; every further one waits twice as long."""
LONGEST_WAIT = 120.0
"""Seconds, also where the server asks for more."""
BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which it is worth asking again."""

Tell = Callable[[int, int | None], None]
"""Takes the number of bytes that are here, and that of the whole file (None: not known)."""


class NotThereError(Exception):
    """The address has no such file."""


class BrokenError(Exception):
    """It is worth asking again, after `wait` seconds at least: the line broke, or the server has no time."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


class Beginning:
    """The first bytes of a file: `NAME.part`, and beside it `NAME.part.json` on what it is the beginning of.

    num_bytes: the size of the whole file, None where the server does not tell it.
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
        """Empty it, for the file that `validator` stands for."""
        self.path.write_bytes(b"")
        self.validator, self.num_bytes = validator, num_bytes
        note = {"url": self.url, "validator": validator, "num_bytes": num_bytes}
        self._note.write_text(json.dumps(note), encoding="utf-8")

    def finish(self, path: Path) -> None:
        """Give the file its name."""
        self.path.replace(path)
        self._note.unlink(missing_ok=True)

    def _read_note(self) -> None:
        """Go on with what an earlier run left, if it tells what that is, else start anew."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            if note["url"] == self.url:
                self.validator, self.num_bytes = note["validator"], note["num_bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            pass


def fetch(url: str, path: Path, num_bytes: int | None, retries: int, tell: Tell, warn: Callable[[str], None]) -> None:
    """Get what `url` has as the file `path`, `tell` how much of it is here, and `warn` before it is asked for again.

    Goes on where an earlier run stopped, if the server has the same file still: it is asked for the rest with `Range`,
    on the condition of the file's `ETag` or date (`If-Range`, RFC 9110), and for the whole where it has neither.
    `retries` is how often in a row that may fail without anything new having come.
    Raises `NotThereError` where the address has no such file, and `UserError` where trying again is of no use.
    """
    beginning = Beginning(path, url)
    farthest, failures = beginning.size, 0
    with requests.Session() as session:
        while not beginning.is_whole:
            try:
                _go_on(session, url, beginning, num_bytes, tell)
                break
            except BrokenError as fault:
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


def _go_on(session: requests.Session, url: str, beginning: Beginning, num_bytes: int | None, tell: Tell) -> None:
    """Ask once for what is not here yet, and write what comes."""
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
        raise BrokenError(_reason(fault)) from None
    except requests.RequestException as fault:
        raise UserError(f"{url} cannot be fetched ({fault}); name another place with mirror=...") from None


def _refuse_status(response: requests.Response, beginning: Beginning) -> None:
    """Raise what an answer without the file calls for."""
    status = response.status_code
    if status in (404, 410):
        raise NotThereError
    if status == 416:
        beginning.start(None, None)
        raise BrokenError("the file there is shorter than what has come")
    if status in BUSY:
        wait = min(_number(response.headers.get("Retry-After", "")) or 0, LONGEST_WAIT)
        raise BrokenError(f"the server answers {status} {response.reason}", wait)
    if status not in (200, 206):
        raise UserError(
            f"{beginning.url} cannot be fetched (the server answers {status} {response.reason}); name another place "
            "with mirror=..."
        )


def _receive(response: requests.Response, beginning: Beginning, num_bytes: int | None, tell: Tell) -> None:
    """Write the body of an answer behind what is here, or in its place where the server sends the whole file."""
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
        raise BrokenError("the answer ends before the file does")


def _refuse_other_rest(response: requests.Response, beginning: Beginning) -> None:
    """Forget what is here where the answer is not the rest of it."""
    sent = response.headers.get("Content-Range", "")
    same = _validator(response) in (None, beginning.validator)
    if not (same and beginning.size and sent.startswith(f"bytes {beginning.size}-")):
        beginning.start(None, None)
        raise BrokenError("the server sent the rest of another file")


def _validator(response: requests.Response) -> str | None:
    """What tells that the file has not changed: a strong ETag, or its date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _reason(fault: BaseException) -> str:
    """What lies at the bottom of an error: `[Errno 111] Connection refused`."""
    while fault.__context__ is not None:
        fault = fault.__context__
    return str(fault) or type(fault).__name__
