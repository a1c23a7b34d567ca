"""Does a step of the plan: an archive is fetched, verified and unpacked."""

from contextlib import suppress
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from showattendtell.downloads.depot import Depot
from showattendtell.downloads.fetch import NotThereError, Tell, fetch
from showattendtell.downloads.plan import State, Step
from showattendtell.downloads.unpack import DamagedError, unpack
from showattendtell.errors import UserError


def acquire(step: Step, depot: Depot, retries: int) -> None:
    """Fetch an archive where it is not here, verify it, and unpack it into the root.

    A fetched file that is not what was published is set aside as `NAME.wrong`. Raises `UserError`.
    """
    try:
        with _progress() as progress:
            if step.state is State.FETCH:
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


def _fetch(step: Step, retries: int, progress: Progress) -> None:
    """From the first address that has the archive."""
    tell = _bar(progress, f"fetching {step.archive.file}")

    def warn(sentence: str) -> None:
        progress.console.print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)

    for address in step.addresses:
        with suppress(NotThereError):
            fetch(address, step.source, step.archive.num_bytes, retries, tell, warn)
            return
    has = "has" if len(step.addresses) == 1 else "have"
    raise UserError(f"{' and '.join(step.addresses)} {has} no {step.archive.file}; name another place with mirror=...")


def _verify(step: Step, progress: Progress) -> None:
    tell = _bar(progress, f"verifying {step.archive.file}")
    tell(0, None)
    difference = step.archive.find_difference(step.source)
    if difference:
        raise DamagedError(difference)
    tell(step.num_bytes, step.num_bytes)


def _unpack(step: Step, depot: Depot, progress: Progress) -> list[str]:
    tell, begin = _bar(progress, f"unpacking {step.archive.file}"), partial(depot.begin, step.archive)
    return unpack(step.source, depot.root, step.archive.members, tell, begin)


def _set_aside(step: Step, depot: Depot) -> str:
    """What becomes of a file that is not the archive, and what the user can do."""
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
    """A new bar, and what moves it."""
    bar = progress.add_task(title, total=None)
    return lambda done, total: progress.update(bar, completed=done, total=total)
