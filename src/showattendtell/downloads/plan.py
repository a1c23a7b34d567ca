"""What there is to do for a data set: which archives are done, which are here, and which are to be fetched."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from showattendtell.downloads.depot import Depot
from showattendtell.downloads.publication import Archive, Part, Publication
from showattendtell.errors import UserError


class State(StrEnum):
    """What is to be done about an archive."""

    DONE = "there already"
    UNPACK = "to be unpacked"
    FETCH = "to be fetched"
    REQUEST = "to be asked for"


class Step(NamedTuple):
    """An archive, and what is to be done about it.

    source     the file that it is unpacked from, once that is there
    addresses  where it may be fetched, the first that has it
    """

    archive: Archive
    state: State
    source: Path
    addresses: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The archive's size, 0 where it is not known."""
        return self.archive.num_bytes or (self.source.stat().st_size if self.source.exists() else 0)


def make_plan(publication: Publication, depot: Depot, parts: Sequence[Part] | None, mirror: str | None) -> list[Step]:
    """A step for each archive of the chosen parts (None: of all).

    `mirror` is the address of a folder that is asked first, a folder of this machine that has archives, or one such
    archive. Raises `UserError` where there is no such part or mirror.
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
    """The archives that a mirror on this machine has, by name."""
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


def _step(archive: Archive, depot: Depot, here: Mapping[str, Path], mirror: str | None) -> Step:
    fetched, own = depot.fetched(archive), depot.root / archive.file
    lying = [path for path in (fetched, own, here.get(archive.file)) if path and path.is_file()]
    addresses = tuple(f"{base.rstrip('/')}/{archive.file}" for base in (mirror, archive.base) if base)
    if depot.is_done(archive):
        return Step(archive, State.DONE, fetched)
    if lying:
        return Step(archive, State.UNPACK, lying[0])
    if depot.is_placed(archive):
        return Step(archive, State.DONE, fetched)
    return Step(archive, State.FETCH if addresses else State.REQUEST, fetched, addresses)


def print_plan(plan: Sequence[Step], publication: Publication) -> None:
    """The licence, and of each archive the size and what is done about it."""
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


def _origin(step: Step) -> str:
    """The host that is asked first, or the file that is here."""
    if step.state is State.UNPACK:
        return str(step.source)
    return urlsplit(step.addresses[0]).netloc if step.addresses else ""


def needed_room(plan: Sequence[Step], depot: Depot) -> int:
    """The bytes that are taken at the most on the way, where files are as large in their archive as outside it.

    A fetched archive is removed before the next is fetched. What is left of one that is unpacked in part is known when
    that goes on.
    """
    taken = most = 0
    for step in plan:
        if not depot.has_begun(step.archive) and step.state in (State.FETCH, State.UNPACK):
            archive = _missing_bytes(step) if step.state is State.FETCH else 0
            most = max(most, taken + archive + step.num_bytes)
            taken += step.num_bytes
    return most


def _missing_bytes(step: Step) -> int:
    begun = step.source.with_name(f"{step.source.name}.part")
    return max(0, step.num_bytes - (begun.stat().st_size if begun.exists() else 0))


def refuse_requests(plan: Sequence[Step], publication: Publication) -> None:
    """Raise a `UserError` that says how to come by the archives that have no address, if there are any."""
    files = [step.archive.file for step in plan if step.state is State.REQUEST]
    if files:
        raise UserError(_request(files, publication))


def _request(files: Sequence[str], publication: Publication) -> str:
    has = "has" if len(files) == 1 else "have"
    return (
        f"{' and '.join(files)} {has} no open address: {publication.request}, put what you get into "
        f"{publication.root}, and run the command again to have it unpacked"
    )


def to_do(plan: Sequence[Step]) -> Iterator[Step]:
    """The steps that can be done."""
    return (step for step in plan if step.state in (State.FETCH, State.UNPACK))
