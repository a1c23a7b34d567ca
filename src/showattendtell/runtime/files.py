"""Atomic writes, file locks, checksums, and the file of a run's epoch times."""

import csv
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

UNFINISHED = ".tmp"
"""Suffix of a file that is being written."""

LOCK = ".lock"
"""Name of the lock file of a folder."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""Names of the checkpoints in a run's folder: the best one, and the last two, from which training resumes."""

TIMES = "times.csv"
"""Name of the file with the seconds of every epoch, in a run's folder."""


def cache_folder(given: str | Path | None = None) -> Path:
    """Return the folder of the feature cache and drawings: `given`, or `$SHOWATTENDTELL_CACHE`, or its default."""
    return Path(given or os.environ.get("SHOWATTENDTELL_CACHE", "~/.cache/showattendtell")).expanduser()


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def lock_file(path: Path, wait: bool = False) -> TextIO | None:
    """Lock a file for this process until the returned stream is closed.

    The system releases the lock when the process ends or is killed. Forked processes do not inherit it. A process must
    not open the file a second time, since closing any stream of the file releases the lock.

    Args:
        wait: wait until no other process has the lock.

    Returns:
        The stream; None if another process has the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, and hold it in a `with` block."""
    file = lock_file(path, wait=True)
    assert file
    with file:
        yield


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder for `fcntl.flock`; its lock is released at the end, even if processes were forked meanwhile.

    Unlike `lock_file`, this lock excludes other threads of the process too, and the folder may be read-only.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def preallocate(descriptor: int, size: int) -> None:
    """Set the size of a file in bytes, and reserve its disk space if the system supports it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def fadvise(
    descriptor: int, reading: Literal["RANDOM", "SEQUENTIAL", "WILLNEED"], start: int = 0, size: int = 0
) -> None:
    """Advise the system how `size` bytes from `start` will be read, if it has `posix_fadvise`; 0 means to the end."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, getattr(os, f"POSIX_FADV_{reading}"))


@contextmanager
def atomic_write(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Open a stream whose content replaces a file when all of it is on disk.

    If writing fails, the previous file stays. If several processes write the same file, the last one wins. A process
    that is killed leaves `NAME.RANDOM.tmp` behind.

    Args:
        keep: new name of the previous file, which is otherwise deleted.

    Raises:
        OSError: the file cannot be written; `filename` is its path.
    """
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with partial.open("xb") as stream:  # a link of this name would not be followed
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if keep and path.exists():
            path.replace(keep)
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # errors of write() have none
        raise
    with suppress(OSError):  # synchronize the folder, too, since it has the new name; some file systems cannot
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_times(seconds: Sequence[float], folder: Path) -> None:
    """Write the seconds of every epoch as CSV.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [f"{epoch},{time:.3f}" for epoch, time in enumerate(seconds, start=1)]
    with atomic_write(folder / TIMES) as stream:
        stream.write("\n".join(["epoch,seconds", *lines, ""]).encode())


def read_times(folder: Path) -> list[float]:
    """Return the seconds of each finished epoch; an empty list if the file is missing or has another format."""
    try:
        text = (folder / TIMES).read_text(encoding="utf-8")
        return [float(line["seconds"]) for line in csv.DictReader(text.splitlines())]
    except (OSError, KeyError, ValueError, TypeError):
        return []


def duration(time: float) -> str:
    """Format seconds as `41 s`, `12 min` or `3.2 h`."""
    if time < 100:
        return f"{time:.0f} s"
    return f"{time / 60:.0f} min" if time < 6000 else f"{time / 3600:.1f} h"
