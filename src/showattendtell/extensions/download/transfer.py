"""Fetch a file over HTTP, and resume where an earlier transfer ended (RFC 9110, Range and If-Range)."""

import time
from collections.abc import Callable
from pathlib import Path

import requests
from rich.filesize import decimal

from showattendtell.errors import UserError

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


def fetch(url: str, path: Path, retries: int, report: Report, warn: Callable[[str], None]) -> bool:
    """Download a file; return False if the address has no such file.

    The bytes are in `NAME.part` until the file is complete, and its ETag or date in `NAME.part.version`. Without one
    of both, the next attempt starts again.

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
            with requests.Session() as session:
                found = _receive(session, url, part, report)
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
        _version_file(part).unlink(missing_ok=True)
    return found


def _receive(session: requests.Session, url: str, part: Path, report: Report) -> bool:
    """Send one request for the missing bytes and append the answer to the partial file."""
    headers = {"Accept-Encoding": "identity"}
    version_file, start = _version_file(part), _size(part)
    if start and version_file.exists():
        headers |= {"Range": f"bytes={start}-", "If-Range": version_file.read_text()}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code in (404, 410):
            return False
        if response.status_code == 416:  # the file there is shorter than what is here
            part.unlink()
            raise requests.ConnectionError("the server has another file now")
        if response.status_code in BUSY:
            raise requests.ConnectionError(f"the server answers {response.status_code} {response.reason}")
        response.raise_for_status()
        if response.status_code == 206 and not _continues(response, start, headers.get("If-Range")):
            part.unlink()
            raise requests.ConnectionError("the server sent the rest of another file")
        if response.status_code != 206:  # the whole file
            start = 0
            part.write_bytes(b"")
            tag = response.headers.get("ETag", "")
            version = tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
            version_file.unlink(missing_ok=True)
            if version:
                version_file.write_text(version)
        length = int(response.headers.get("Content-Length", 0))
        total = start + length if length else None
        with part.open("ab") as file:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                report(file.tell(), total)
    if total not in (None, _size(part)):
        raise requests.ConnectionError("the answer ends before the file does")
    return True


def _continues(response: requests.Response, start: int, version: str | None) -> bool:
    """Return whether an answer is the rest of this version of the file, from the byte that was asked for."""
    is_same = version in (response.headers.get("ETag", version), response.headers.get("Last-Modified"))
    return is_same and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
