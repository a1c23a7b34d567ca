"""Archives of a published data set: their contents, verification and unpacking."""

import gzip
import hashlib
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from rich.filesize import decimal

from showattendtell.errors import UserError
from showattendtell.settings import PositiveInt, Text

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
        """Describe how a file differs from the published archive: `has 3 bytes instead of 5`."""
        num_bytes = path.stat().st_size
        if self.num_bytes not in (None, num_bytes):
            return f"has {num_bytes:,} bytes instead of {self.num_bytes:,}"
        if self.checksum is None:
            return None
        kind, _, expected = self.checksum.partition(":")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        return None if found == expected else f"has the {kind} checksum {found} instead of {expected}"


class Publication(NamedTuple):
    """The archives of a data set.

    root: the folder to unpack into, and dataset.root of training.
    licence: terms of use.
    archives: the archives by name.
    request: how to request archives without a URL.
    """

    root: Text
    licence: Text
    archives: Mapping[str, Archive]
    request: Text | None = None


FAULTS = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
"""Errors raised for damaged archives; zipfile's RuntimeError also means encryption or a compression method that
Python does not support."""


class DamagedError(Exception):
    """An archive that is unreadable or differs from the published one."""


class Member(NamedTuple):
    """A file in an archive: its path there (`./a.jpg` is `a.jpg`), its size in bytes, and a function that opens it."""

    name: str
    size: int
    open: Callable[[], Any]


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
            _refuse_outside(path, members, root)
            chosen = _choose(members, patterns)
            missing = [member for member in chosen if not _is_there(member, root / member.name)]
            total, needed = (sum(member.size for member in some) for some in (chosen, missing))
            check_free_space(root, needed, f"the files in {path}")
            begin()
            report(total - needed, total)
            for member in missing:
                _write(member, root / member.name)
                needed -= member.size
                report(total - needed, total)
    except FAULTS as fault:
        raise DamagedError(f"cannot be unpacked ({str(fault) or type(fault).__name__})") from None
    return [member.name for member in chosen]


def check_free_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise a `UserError` if a folder's disk has too little free space."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} need {decimal(num_bytes)}, and the disk of {folder} has {decimal(free)} free; make room, choose "
            "another disk with dataset.root=..., or fetch less with parts=[...]"
        )


@contextmanager
def _opened(path: Path) -> Iterator[list[Member]]:
    """Open an archive and yield its files in order, without links."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            infos = [info for info in zipped.infolist() if not info.is_dir()]
            yield [
                Member(str(PurePosixPath(info.filename)), info.file_size, partial(zipped.open, info)) for info in infos
            ]
    elif not tarfile.is_tarfile(path):
        raise DamagedError("is neither a whole zip nor a tar file")
    else:
        with tarfile.open(path) as tar:
            files = [info for info in tar if info.isfile()]
            yield [Member(str(PurePosixPath(info.name)), info.size, partial(tar.extractfile, info)) for info in files]


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


def _is_there(member: Member, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == member.size


def _write(member: Member, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    with member.open() as packed, unfinished.open("wb") as file:
        shutil.copyfileobj(packed, file)
    unfinished.replace(path)
