"""Published data sets: which archives are here, and the work that is left."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from showattendtell.errors import UserError
from showattendtell.extensions.download.archives import Archive, Part, fetch, unpack
from showattendtell.runtime.files import expand_home, lock_file
from showattendtell.settings import NonNegativeInt, Text, is_url


@dataclass
class DownloadConfig:
    """Settings of `download`.

    Attributes:
        dataset: the data set to fetch.
        parts: which of images, captions and splits (Karpathy's) to fetch; by default all that the data set has.
        mirror: another source of the archives: the URL of a folder, which is tried first, or a local folder or archive.
        retries: how often a transfer is retried in a row without receiving new data; the pause doubles each time.
    """

    dataset: Text
    parts: Annotated[Sequence[Part], Field(min_length=1)] | None
    mirror: Text | None
    retries: NonNegativeInt


class Publication(NamedTuple):
    """The archives of a data set.

    root: the folder to unpack into, and dataset.root of training.
    license: terms of use.
    archives: the archives by name.
    request: how to request archives without a URL.
    """

    root: Text
    license: Text
    archives: Mapping[str, Archive]
    request: Text | None = None


class Step(NamedTuple):
    """An archive, and where its content is or comes from.

    file  the archive on this disk; with `addresses`, where it will be
    """

    archive: Archive
    file: Path
    addresses: Sequence[str] = ()
    done: bool = False

    @property
    def state(self) -> str:
        if self.done:
            return "complete"
        if self.file.is_file():
            return "to be unpacked"
        return "to be downloaded" if self.addresses else "on request"

    @property
    def num_bytes(self) -> int:
        """Size of the archive, 0 if unknown."""
        return self.archive.num_bytes or (self.file.stat().st_size if self.file.is_file() else 0)


def download(publication: Publication, parts: Sequence[Part] | None, mirror: str | None, retries: int) -> None:
    """Fetch, verify and unpack what is missing of a data set. Finished archives are skipped.

    Args:
        parts: None for all.
        mirror: the URL of a folder, which is tried first, or a local folder with archives, or one of them.

    Raises:
        UserError: a step fails, or archives have to be requested from their authors.
    """
    root = expand_home(publication.root)
    folder = root / "downloads"
    lock = lock_file(folder / "lock")
    if lock is None:
        raise UserError(f"another download into {root} is running; wait until it has ended")
    with lock:
        try:
            _complete(publication, root, folder, parts, mirror, retries)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{root}: {reason}; fix this and run the command again to resume") from None
    print(f"complete in {root}")


def _complete(
    publication: Publication,
    root: Path,
    folder: Path,
    parts: Sequence[Part] | None,
    mirror: str | None,
    retries: int,
) -> None:
    steps = [_step(archive, root, folder, mirror) for archive in _chosen(publication, parts)]
    _print_steps(steps, publication)
    # an archive and its files are on the disk at the same time
    needed = sum(2 * step.num_bytes for step in steps if step.state.startswith("to be"))
    free = shutil.disk_usage(root).free
    if free < needed:
        raise UserError(
            f"the archives and what is in them need {decimal(needed)}, and the disk of {root} has {decimal(free)} "
            "free; make room, choose another disk with dataset.root=..., or download less with parts=[...]"
        )
    requested = [step.archive.file for step in steps if step.state == "on request"]
    for step in steps:
        if step.state == "to be downloaded":
            _fetch(step, retries)
        if step.state == "to be unpacked":
            _verify_and_unpack(step, root, folder)
    if requested:
        raise UserError(
            f"no public URL for {' and '.join(requested)}: {publication.request}, put the files you receive into "
            f"{root}, and run the command again to unpack them"
        )


def _chosen(publication: Publication, parts: Sequence[Part] | None) -> list[Archive]:
    archives = list(publication.archives.values())
    chosen = [archive for archive in archives if parts is None or archive.part in parts]
    if not chosen:
        available = ", ".join(sorted({archive.part for archive in archives}))
        raise UserError(f"parts={','.join(parts or ())}: this data set has none of these; available: {available}")
    return chosen


def _step(archive: Archive, root: Path, folder: Path, mirror: str | None) -> Step:
    fetched = folder / archive.file
    if _is_unpacked(archive, root, folder):
        return Step(archive, fetched, done=True)
    places = [fetched, root / archive.file]
    bases = [archive.base] if archive.base else []
    if mirror and is_url(mirror):
        bases.insert(0, mirror)
    elif mirror:
        local = expand_home(mirror)
        if not local.exists():
            raise UserError(f"mirror={mirror} is neither an http address nor a folder or file that exists")
        places.append(local if local.name == archive.file else local / archive.file)
    for place in places:
        if place.is_file():
            return Step(archive, place)
    if not _note(archive, folder).exists() and any((root / place).exists() for place in archive.places):
        return Step(archive, fetched, done=True)
    return Step(archive, fetched, [f"{base.rstrip('/')}/{archive.file}" for base in bases])


def _note(archive: Archive, folder: Path) -> Path:
    """Return the file with the names of an archive's unpacked files, empty while it is being unpacked."""
    return folder / f"{archive.file}.unpacked"


def _is_unpacked(archive: Archive, root: Path, folder: Path) -> bool:
    note = _note(archive, folder)
    names = note.read_text(encoding="utf-8", errors="replace").splitlines() if note.exists() else []
    return bool(names) and all(os.path.exists(root / name) for name in names)


def _print_steps(steps: Sequence[Step], publication: Publication) -> None:
    """Print the license, and the size and state of each archive."""
    print(f"license: {publication.license}")
    for step in steps:
        size = decimal(step.num_bytes) if step.num_bytes else "unknown size"
        print(f"{step.archive.file} ({step.archive.part}, {size}): {step.state}")


def _fetch(step: Step, retries: int) -> None:
    """Download an archive from the first address that has it."""
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as progress:
        task = progress.add_task(f"fetching {step.archive.file}", total=step.archive.num_bytes)
        for address in step.addresses:
            found = fetch(
                address,
                step.file,
                retries,
                report=lambda done, total: progress.update(task, completed=done, total=total),
                warn=lambda message: console.print(message, style="yellow", markup=False, soft_wrap=True),
            )
            if found:
                return
    raise UserError(f"{' and '.join(step.addresses)}: not found; set another source with mirror=...")


def _verify_and_unpack(step: Step, root: Path, folder: Path) -> None:
    """Unpack an archive, and remove it if it was downloaded. One that differs from the published file is renamed."""
    difference = step.archive.find_difference(step.file)
    is_own = step.file.parent == folder
    if difference and is_own:
        wrong = step.file.replace(step.file.with_name(f"{step.file.name}.wrong"))
        raise UserError(
            f"{step.file} {difference}; it is now {wrong.name}: run the command again to fetch it once more"
        )
    if difference:
        raise UserError(f"{step.file} {difference}; put the published file in its place")
    note = _note(step.archive, folder)
    note.write_text("")
    names = unpack(step.file, root, step.archive.members)
    note.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    if is_own:
        step.file.unlink()
