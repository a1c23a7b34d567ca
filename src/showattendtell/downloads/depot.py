"""The folder `downloads/` in a data set's root: archives on their way, and lists of what was unpacked."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from showattendtell.downloads.publication import Archive
from showattendtell.errors import UserError


class Depot:
    """What is known of the archives of one root.

    A fetched archive lies here until it is unpacked. While it is, a file `NAME.unpacking` says so; then
    `NAME.unpacked` lists the files that it gave, a line each.
    """

    def __init__(self, root: Path):
        self.root = root
        self.folder = root / "downloads"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep it for this process, which makes it where it is missing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as fault:
            raise UserError(
                f"{self.folder} cannot be written ({fault.strerror}); set dataset.root to another folder"
            ) from None
        with os.fdopen(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is downloading into {self.root}; wait until it is done") from None
            yield

    def fetched(self, archive: Archive) -> Path:
        """Where an archive is put that comes over the network."""
        return self.folder / archive.file

    def is_done(self, archive: Archive) -> bool:
        """Whether an archive was unpacked and what it gave is there still."""
        record = self._record(archive, "unpacked")
        names = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        fits = all(any(fnmatchcase(name, pattern) for name in names) for pattern in archive.members)
        return fits and all((self.root / name).exists() for name in names)

    def is_placed(self, archive: Archive) -> bool:
        """Whether the user has put there what an archive holds."""
        return not self.has_begun(archive) and any((self.root / place).exists() for place in archive.places)

    def has_begun(self, archive: Archive) -> bool:
        """Whether an archive is unpacked in part."""
        return self._record(archive, "unpacking").exists()

    def begin(self, archive: Archive) -> None:
        self._record(archive, "unpacking").touch()

    def finish(self, archive: Archive, names: Sequence[str]) -> None:
        """Record that an archive is unpacked, and remove it where it was fetched only for that."""
        unfinished = self._record(archive, "unpacking")
        unfinished.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        unfinished.replace(self._record(archive, "unpacked"))
        self.fetched(archive).unlink(missing_ok=True)

    def _record(self, archive: Archive, suffix: str) -> Path:
        return self.folder / f"{archive.file}.{suffix}"
