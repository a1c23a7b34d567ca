"""Files that are there with all their content, or not at all; what tells them apart; and those that a process holds."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

UNFINISHED = ".tmp"
"""Behind the name of a file that is being written."""

LOCK = ".lock"
"""Held in a folder by the one that works in it."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""The checkpoints in a run's folder: the one that is scored, those that it goes on from."""


def sha256(file: Path) -> str:
    """Of its content, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def hold(path: Path, wait: bool = False) -> TextIO | None:
    """The file, which no other process can hold until it is closed; None where another one has it, unless this is to
    `wait` for that one's end.

    The kernel gives the file back whatever becomes of this process, and those that are forked from it do not hold it.
    A process must not open a file again that it holds: to close it anywhere is to give it back.
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
def alone(path: Path) -> Iterator[None]:
    """While no other process holds the file, which this one waits for."""
    file = hold(path, wait=True)
    assert file
    with file:
        yield


def reserve(descriptor: int, size: int) -> None:
    """Give a file its size, with room on the disk for all of it where the system can promise that."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def advise(
    descriptor: int, reading: Literal["RANDOM", "SEQUENTIAL", "WILLNEED"], start: int = 0, size: int = 0
) -> None:
    """Tell a system that listens how a file will be read: `size` bytes from `start`, all of them where it is 0."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, getattr(os, f"POSIX_FADV_{reading}"))


@contextmanager
def whole_file(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """A stream for the file's content, which takes the file's place when all of it is on the disk.

    Until then, and where writing fails, what was there stays. A process that is killed leaves `NAME.tmp` behind.

    Args:
        keep: the name that what was there gets.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
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
            fault.filename = str(path)  # writing does not tell it
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Put the folder's list of names on the disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
