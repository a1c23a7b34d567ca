"""Atomic writes, file locks, checksums, and the file of a run's epoch times."""

import csv
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

UNFINISHED = ".tmp"
"""Suffix of a file that is being written."""

LOCK = ".lock"
"""Name of the lock file of a folder."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""The checkpoints in a run's folder: `best` is evaluated, the other two are resumed from."""

TIMES = "times.csv"
"""The seconds of every epoch, in a run's folder."""


def sha256(file: Path) -> str:
    """Return the SHA-256 of the file's content in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def lock_file(path: Path, wait: bool = False) -> TextIO | None:
    """Lock a file for this process until the returned stream is closed; return None if another process has the lock.

    The kernel releases the lock when the process ends, however it ends. Forked processes do not inherit it. A process
    must not open the file a second time: closing any stream of it releases the lock.

    Args:
        wait: wait for another process to release the lock.
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
    """Hold the lock of a file in a `with` block; wait for it first."""
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
    """Set the size of a file, and reserve its disk space where the system can."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def fadvise(
    descriptor: int, reading: Literal["RANDOM", "SEQUENTIAL", "WILLNEED"], start: int = 0, size: int = 0
) -> None:
    """Announce how `size` bytes from `start` will be read (0: to the end), where the system has `posix_fadvise`."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, getattr(os, f"POSIX_FADV_{reading}"))


@contextmanager
def atomic_write(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Open a stream whose content replaces the file once all of it is on the disk.

    If writing fails, the previous file stays. A process that is killed leaves `NAME.tmp` behind.

    Args:
        keep: new name for the previous file.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        unfinished.unlink(missing_ok=True)  # it may be a link to another file
        with unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if keep and path.exists():
            path.replace(keep)
        unfinished.replace(path)
    except BaseException as fault:
        unfinished.unlink(missing_ok=True)
        if isinstance(fault, OSError):
            fault.filename = str(path)  # errors of write() have no name
        raise
    with suppress(OSError):  # the folder's list of names, too, where the file system can
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_times(seconds: Sequence[float], folder: Path) -> None:
    """Write a line for each epoch, counted from 1.

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
