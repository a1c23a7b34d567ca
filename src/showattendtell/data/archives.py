"""Unpack zip and tar files. No member is written outside of the target folder."""

import gzip
import lzma
import os
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

ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
)
"""Errors that damaged archives raise. zipfile raises RuntimeError for encryption and unsupported compression, too."""


class DamagedError(Exception):
    """An archive is unreadable, or differs from the published one."""


Member = tuple[str, int, Callable[[], Any]]
"""A file in an archive: its normalized path, its size in bytes, and a function that opens it."""


def unpack(
    path: Path, root: Path, patterns: Sequence[str], report: Callable[[int, int], None], begin: Callable[[], None]
) -> list[str]:
    """Unpack the members of an archive that match a pattern, except files that exist with the right size.

    Args:
        path: the archive.
        root: the folder to unpack into.
        patterns: of member names, as for `fnmatch`; each must match.
        report: gets the number of bytes unpacked so far, and the total.
        begin: called before anything is written.

    Returns:
        The names of the members that match.

    Raises:
        DamagedError: the archive is damaged, or has no member for a pattern.
        UserError: a member lies outside of the root, or the disk has too little space.
    """
    try:
        with _opened(path) as members:
            chosen = _choose(path, members, patterns, root)
            missing = [member for member in chosen if not _is_unpacked(root / member[0], member[1])]
            total, needed = (sum(size for _, size, _ in some) for some in (chosen, missing))
            check_free_space(root, needed, f"the files in {path}")
            begin()
            report(total - needed, total)
            for name, size, open_member in missing:
                target = root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(f"{target.name}.part")
                partial.unlink(missing_ok=True)  # a symbolic link of this name would be followed
                with open_member() as packed, partial.open("xb") as file:
                    shutil.copyfileobj(packed, file)
                partial.replace(target)
                needed -= size
                report(total - needed, total)
    except ARCHIVE_ERRORS as error:
        raise DamagedError(f"cannot be unpacked ({str(error) or type(error).__name__})") from None
    return [name for name, _, _ in chosen]


def _is_unpacked(target: Path, size: int) -> bool:
    """Return whether there is a file of this size; raise `UserError` if there is something else, which is kept."""
    if os.path.lexists(target) and not (target.is_file() and target.stat().st_size == size):
        raise UserError(f"{target} exists, and differs from the file in the archive; remove it")
    return target.exists()


def check_free_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise `UserError` if the disk of a folder has less than `num_bytes` free; the message starts with `what`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} need {decimal(num_bytes)}, and the disk of {folder} has {decimal(free)} free; make room, choose "
            "another disk with dataset.root=..., or download less with parts=[...]"
        )


@contextmanager
def _opened(path: Path) -> Iterator[list[Member]]:
    """Open an archive and yield its regular files in order."""
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
