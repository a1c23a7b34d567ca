"""Download plan of a data set: archives that are done, available locally, or to be fetched."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from showattendtell.data.download.archives import Archive, DamagedError, Part, Publication, unpack
from showattendtell.data.download.fetch import DownloadCache, NotFoundError, Tell, fetch
from showattendtell.errors import UserError


class ArchiveState(StrEnum):
    """State of an archive."""

    DONE = "there already"
    UNPACK = "to be unpacked"
    FETCH = "to be fetched"
    REQUEST = "to be asked for"


class DownloadStep(NamedTuple):
    """An archive and its state.

    source     file to unpack, once it exists
    addresses  URLs to try, in this order
    """

    archive: Archive
    state: ArchiveState
    source: Path
    addresses: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of the archive, 0 if unknown."""
        return self.archive.num_bytes or (self.source.stat().st_size if self.source.exists() else 0)


def make_plan(
    publication: Publication, depot: DownloadCache, parts: Sequence[Part] | None, mirror: str | None
) -> list[DownloadStep]:
    """Return a step for each archive of the chosen parts (None: of all).

    `mirror` is the URL of a folder that is tried first, a local folder with archives, or one such archive.
    Raises `UserError` for an unknown part and for a missing mirror.
    """
    archives = publication.archives.values()
    known = sorted({archive.part for archive in archives})
    for part in parts or ():
        if part not in known:
            raise UserError(f"parts={part}: this data set has no {part}; known are {', '.join(known)}")
    here = _local_archives(publication.archives, mirror)
    remote = mirror if mirror and _is_address(mirror) else None
    return [_step(archive, depot, here, remote) for archive in archives if parts is None or archive.part in parts]


def _local_archives(archives: Mapping[str, Archive], mirror: str | None) -> dict[str, Path]:
    """Return the archives of a local mirror, by name."""
    if mirror is None or _is_address(mirror):
        return {}
    place, names = Path(mirror).expanduser(), [archive.file for archive in archives.values()]
    if place.is_file() and place.name in names:
        return {place.name: place}
    if place.is_file():
        raise UserError(f"mirror={mirror} is none of the data set's archives, which are {', '.join(names)}")
    if not place.is_dir():
        raise UserError(f"mirror={mirror} is neither an http address nor a folder or file that exists")
    return {name: place / name for name in names if (place / name).is_file()}


def _is_address(mirror: str) -> bool:
    return mirror.startswith(("http://", "https://"))


def _step(archive: Archive, depot: DownloadCache, here: Mapping[str, Path], mirror: str | None) -> DownloadStep:
    fetched, own = depot.fetched(archive), depot.root / archive.file
    lying = [path for path in (fetched, own, here.get(archive.file)) if path and path.is_file()]
    addresses = tuple(f"{base.rstrip('/')}/{archive.file}" for base in (mirror, archive.base) if base)
    if depot.is_done(archive):
        return DownloadStep(archive, ArchiveState.DONE, fetched)
    if lying:
        return DownloadStep(archive, ArchiveState.UNPACK, lying[0])
    if depot.is_placed(archive):
        return DownloadStep(archive, ArchiveState.DONE, fetched)
    return DownloadStep(archive, ArchiveState.FETCH if addresses else ArchiveState.REQUEST, fetched, addresses)


def print_plan(plan: Sequence[DownloadStep], publication: Publication) -> None:
    """Print the licence, and size and state of each archive."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"licence: {publication.licence}", markup=False)
    table = Table("archive", "part", box=None)
    table.add_column("size", justify="right")
    table.add_column("")
    table.add_column("from", overflow="fold")
    for step in plan:
        size = decimal(step.num_bytes) if step.num_bytes else "unknown"
        table.add_row(step.archive.file, step.archive.part, size, step.state, Text(_origin(step)))
    console.print(table)


def _origin(step: DownloadStep) -> str:
    """Return the host that is tried first, or the local file."""
    if step.state is ArchiveState.UNPACK:
        return str(step.source)
    return urlsplit(step.addresses[0]).netloc if step.addresses else ""


def required_space(plan: Sequence[DownloadStep], depot: DownloadCache) -> int:
    """Return the maximum number of bytes needed at any time, if files have the same size in the archive and unpacked.

    A fetched archive is removed before the next one is fetched. The remainder of a partly unpacked archive is
    known only when unpacking resumes.
    """
    taken = most = 0
    for step in plan:
        if not depot.has_begun(step.archive) and step.state in (ArchiveState.FETCH, ArchiveState.UNPACK):
            archive = _missing_bytes(step) if step.state is ArchiveState.FETCH else 0
            most = max(most, taken + archive + step.num_bytes)
            taken += step.num_bytes
    return most


def _missing_bytes(step: DownloadStep) -> int:
    begun = step.source.with_name(f"{step.source.name}.part")
    return max(0, step.num_bytes - (begun.stat().st_size if begun.exists() else 0))


def check_requests(plan: Sequence[DownloadStep], publication: Publication) -> None:
    """Raise a `UserError` that explains how to get the archives without a URL, if there are any."""
    files = [step.archive.file for step in plan if step.state is ArchiveState.REQUEST]
    if files:
        raise UserError(_request(files, publication))


def _request(files: Sequence[str], publication: Publication) -> str:
    has = "has" if len(files) == 1 else "have"
    return (
        f"{' and '.join(files)} {has} no open address: {publication.request}, put what you get into "
        f"{publication.root}, and run the command again to have it unpacked"
    )


def remaining_steps(plan: Sequence[DownloadStep]) -> Iterator[DownloadStep]:
    """Yield the steps that can be done."""
    return (step for step in plan if step.state in (ArchiveState.FETCH, ArchiveState.UNPACK))


def acquire(step: DownloadStep, depot: DownloadCache, retries: int) -> None:
    """Fetch an archive if it is not available locally, verify it, and unpack it into the root.

    A fetched file that differs from the published one is renamed to `NAME.wrong`. Raises `UserError`.
    """
    try:
        with _progress() as progress:
            if step.state is ArchiveState.FETCH:
                _fetch(step, retries, progress)
            _verify(step, progress)
            depot.finish(step.archive, _unpack(step, depot, progress))
    except DamagedError as fault:
        raise UserError(f"{step.source} {fault}; {_set_aside(step, depot)}") from None
    except OSError as fault:
        raise UserError(
            f"{fault.filename or depot.root}: {(fault.strerror or str(fault)).lower()}; mend that, and run the command "
            "again to go on from there"
        ) from None


def _fetch(step: DownloadStep, retries: int, progress: Progress) -> None:
    """Fetch an archive from the first URL that has it."""
    report = _bar(progress, f"fetching {step.archive.file}")

    def warn(sentence: str) -> None:
        progress.console.print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)

    for address in step.addresses:
        with suppress(NotFoundError):
            fetch(address, step.source, step.archive.num_bytes, retries, report, warn)
            return
    has = "has" if len(step.addresses) == 1 else "have"
    raise UserError(f"{' and '.join(step.addresses)} {has} no {step.archive.file}; name another place with mirror=...")


def _verify(step: DownloadStep, progress: Progress) -> None:
    report = _bar(progress, f"verifying {step.archive.file}")
    report(0, None)
    difference = step.archive.find_difference(step.source)
    if difference:
        raise DamagedError(difference)
    report(step.num_bytes, step.num_bytes)


def _unpack(step: DownloadStep, depot: DownloadCache, progress: Progress) -> list[str]:
    report, begin = _bar(progress, f"unpacking {step.archive.file}"), partial(depot.begin, step.archive)
    return unpack(step.source, depot.root, step.archive.members, report, begin)


def _set_aside(step: DownloadStep, depot: DownloadCache) -> str:
    """Rename a file that is not the archive, and return advice for the user."""
    if step.source != depot.fetched(step.archive):
        return "put the published file in its place"
    wrong = step.source.with_name(f"{step.source.name}.wrong")
    step.source.replace(wrong)
    return f"it is now {wrong.name}: run the command again to fetch it anew, or name another place with mirror=..."


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _bar(progress: Progress, title: str) -> Tell:
    """Add a progress bar, and return its update function."""
    bar = progress.add_task(title, total=None)
    return lambda done, total: progress.update(bar, completed=done, total=total)
