"""Verify archives, and unpack the wanted members of zip and tar files."""

import hashlib
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from rich.filesize import decimal

from showattendtell.errors import UserError, first_line
from showattendtell.settings import PositiveInt, Text

Part = Literal["images", "captions", "splits"]
Checksum = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")]

# zipfile raises RuntimeError for encryption, and NotImplementedError for unknown compression
DAMAGES = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, NotImplementedError)


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
        """Return how a file differs from the published archive, such as `has 3 bytes instead of 5`; None if equal."""
        num_bytes = path.stat().st_size
        if self.num_bytes not in (None, num_bytes):
            return f"has {num_bytes:,} bytes instead of {self.num_bytes:,}"
        if self.checksum is None:
            return None
        algorithm, _, expected = self.checksum.partition(":")
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, algorithm).hexdigest()
        return None if checksum == expected else f"has the {algorithm} checksum {checksum} instead of {expected}"


def unpack(path: Path, root: Path, patterns: Sequence[str]) -> list[str]:
    """Unpack the members of an archive that match a pattern, except files that exist with the right size.

    Returns:
        The names of the members that match.

    Raises:
        UserError: the archive is damaged, has no member for a pattern, or has one that lies outside of the root; or a
            file of another size exists; or the disk has too little space.
    """
    try:
        with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else tarfile.open(path) as archive:
            return _unpack(archive, path, root, patterns)
    except DAMAGES as error:
        raise UserError(
            f"{path} cannot be unpacked ({first_line(error) or type(error).__name__}); get it again"
        ) from None


def _unpack(archive: Any, path: Path, root: Path, patterns: Sequence[str]) -> list[str]:
    is_zip = isinstance(archive, zipfile.ZipFile)
    infos = archive.infolist() if is_zip else [info for info in archive if info.isfile()]
    sizes = {(info.filename if is_zip else info.name): (info.file_size if is_zip else info.size) for info in infos}
    for name in sizes:
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise UserError(f"{path} has the member {name}, which lies outside of {root}; nothing was unpacked")
    names = [name for name in sizes if any(fnmatchcase(str(PurePosixPath(name)), pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(fnmatchcase(str(PurePosixPath(name)), pattern) for name in names):
            raise UserError(f"{path} has no {pattern}; get the published archive")
    targets = {name: root / PurePosixPath(name) for name in names}
    missing = [name for name in names if not _is_unpacked(targets[name], sizes[name])]
    check_free_space(root, sum(sizes[name] for name in missing), f"the files in {path}")
    for name in missing:
        target = targets[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.part")
        partial.unlink(missing_ok=True)  # a symbolic link of this name would be followed
        with archive.open(name) if is_zip else archive.extractfile(name) as packed, partial.open("xb") as file:
            shutil.copyfileobj(packed, file)
        partial.replace(target)
    return [str(PurePosixPath(name)) for name in names]


def _is_unpacked(target: Path, size: int) -> bool:
    """Return whether there is a file of this size; raise `UserError` if there is something else, which is kept."""
    exists = target.exists() or target.is_symlink()
    if exists and not (target.is_file() and target.stat().st_size == size):
        raise UserError(f"{target} exists, and differs from the file in the archive; remove it")
    return exists


def check_free_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise `UserError` if the disk of a folder has less than `num_bytes` free; the message starts with `what`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise UserError(
            f"{what} need {decimal(num_bytes)}, and the disk of {folder} has {decimal(free)} free; make room, choose "
            "another disk with dataset.root=..., or download less with parts=[...]"
        )
