"""From a zip or tar archive to files: each whole or not at all, and none outside the folder."""

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
from typing import IO, NamedTuple

from rich.filesize import decimal

from showattendtell.errors import UserError

FAULTS = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
"""What reading an archive raises where it is damaged; zipfile's RuntimeError also where it is encrypted, or packed in a
way that Python does not know."""


class DamagedError(Exception):
    """An archive cannot be read, or is not the one that was expected."""


class Member(NamedTuple):
    """A file in an archive: its path there, its size in bytes, and what opens it."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]


def unpack(
    path: Path, root: Path, patterns: Sequence[str], tell: Callable[[int, int], None], begin: Callable[[], None]
) -> list[str]:
    """Write the members of an archive that fit a pattern into `root`, but for those that are there in their size.

    `begin` is called before anything is written; `tell` takes the number of bytes that are there, and that of all.
    Returns the members' names.
    Raises `DamagedError`, and `UserError` for a member outside the root and where there is no room.
    """
    try:
        with _opened(path) as members:
            _refuse_outside(path, members, root)
            chosen = _choose(members, patterns)
            missing = [member for member in chosen if not _is_there(member, root)]
            total, needed = (sum(member.size for member in some) for some in (chosen, missing))
            refuse_without_room(root, needed, f"the files in {path}")
            begin()
            tell(total - needed, total)
            for member in missing:
                _write(member, root)
                needed -= member.size
                tell(total - needed, total)
    except FAULTS as fault:
        raise DamagedError(f"cannot be unpacked ({str(fault) or type(fault).__name__})") from None
    return [member.name for member in chosen]


def refuse_without_room(folder: Path, num_bytes: int, what: str) -> None:
    """Raise a `UserError` where a folder's disk has not so much room."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} need {decimal(num_bytes)}, and the disk of {folder} has {decimal(free)} free; make room, choose "
            "another disk with dataset.root=..., or fetch less with parts=[...]"
        )


@contextmanager
def _opened(path: Path) -> Iterator[list[Member]]:
    """The files in an archive, in its order; links are left out."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            infos = [info for info in zipped.infolist() if not info.is_dir()]
            yield [_member(info.filename, info.file_size, partial(zipped.open, info)) for info in infos]
    elif not tarfile.is_tarfile(path):
        raise DamagedError("is neither a whole zip nor a tar file")
    else:
        with tarfile.open(path) as tar:
            yield [_member(info.name, info.size, partial(_extract, tar, info)) for info in tar if info.isfile()]


def _member(name: str, size: int, open: Callable[[], IO[bytes]]) -> Member:
    return Member(str(PurePosixPath(name)), size, open)  # ./a.jpg is a.jpg


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(info)
    assert file is not None, "only files are members"
    return file


def _refuse_outside(path: Path, members: Sequence[Member], root: Path) -> None:
    for member in members:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise UserError(
                f"{path} has the member {member.name}, which lies outside of {root}; nothing was unpacked: get the "
                "archive from another place"
            )


def _choose(members: Sequence[Member], patterns: Sequence[str]) -> list[Member]:
    for pattern in patterns:
        if not any(fnmatchcase(member.name, pattern) for member in members):
            raise DamagedError(f"has no {pattern}")
    return [member for member in members if any(fnmatchcase(member.name, pattern) for pattern in patterns)]


def _is_there(member: Member, root: Path) -> bool:
    path = root / member.name
    return path.is_file() and path.stat().st_size == member.size


def _write(member: Member, root: Path) -> None:
    path = root / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    with member.open() as packed, unfinished.open("wb") as file:
        shutil.copyfileobj(packed, file)
    unfinished.replace(path)
