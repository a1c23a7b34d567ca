"""Unpack zip and tar files into a folder, and nowhere else."""

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from rich.filesize import decimal

from showattendtell.errors import UserError

FAULTS = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
"""Errors raised for damaged archives; zipfile's RuntimeError also means encryption or a compression method that
Python does not support."""


class DamagedError(Exception):
    """An archive that is unreadable or differs from the published one."""


Member = tuple[str, int, Callable[[], Any]]
"""A file in an archive: its path there (`./a.jpg` is `a.jpg`), its size in bytes, and a function that opens it."""


def unpack(
    path: Path, root: Path, patterns: Sequence[str], report: Callable[[int, int], None], begin: Callable[[], None]
) -> list[str]:
    """Unpack members of an archive that match a pattern into `root`, except files that exist with the right size.

    `begin` is called before anything is written; `report` takes the number of bytes that exist so far, and the total.
    Returns the members' names.
    Raises `DamagedError`, and `UserError` for a member outside the root and for a full disk.
    """
    try:
        with _opened(path) as members:
            chosen = _choose(path, members, patterns, root)
            missing = [
                (place, size, open_member)
                for name, size, open_member in chosen
                if not ((place := root / name).is_file() and place.stat().st_size == size)
            ]
            total, needed = (sum(size for _, size, _ in some) for some in (chosen, missing))
            check_free_space(root, needed, f"the files in {path}")
            begin()
            report(total - needed, total)
            for place, size, open_member in missing:
                place.parent.mkdir(parents=True, exist_ok=True)
                unfinished = place.with_name(f"{place.name}.part")
                unfinished.unlink(missing_ok=True)  # a symbolic link of this name would be followed
                with open_member() as packed, unfinished.open("xb") as file:
                    shutil.copyfileobj(packed, file)
                unfinished.replace(place)
                needed -= size
                report(total - needed, total)
    except FAULTS as fault:
        raise DamagedError(f"cannot be unpacked ({str(fault) or type(fault).__name__})") from None
    return [name for name, _, _ in chosen]


def check_free_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise a `UserError` if a folder's disk has too little free space."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} need {decimal(num_bytes)}, and the disk of {folder} has {decimal(free)} free; make room, choose "
            "another disk with dataset.root=..., or download less with parts=[...]"
        )


@contextmanager
def _opened(path: Path) -> Iterator[list[Member]]:
    """Open an archive and yield its files in order, without links."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            infos = [info for info in zipped.infolist() if not info.is_dir()]
            yield [(str(PurePosixPath(info.filename)), info.file_size, partial(zipped.open, info)) for info in infos]
    elif not tarfile.is_tarfile(path):
        raise DamagedError("is neither a whole zip nor a tar file")
    else:
        with tarfile.open(path) as tar:
            files = [info for info in tar if info.isfile()]
            yield [(str(PurePosixPath(info.name)), info.size, partial(tar.extractfile, info)) for info in files]


def _choose(path: Path, members: Sequence[Member], patterns: Sequence[str], root: Path) -> list[Member]:
    """Return the members that match a pattern; raise `UserError` if any member lies outside the root."""
    for name, _, _ in members:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(
                f"{path} has the member {name}, which lies outside of {root}; nothing was unpacked: get the archive "
                "from another source"
            )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _, _ in members):
            raise DamagedError(f"has no {pattern}")
    return [member for member in members if any(fnmatchcase(member[0], pattern) for pattern in patterns)]
