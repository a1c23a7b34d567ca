"""The stores of a cache on the screen."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress
from tabulate import tabulate

from showattendtell.errors import UserError
from showattendtell.features.collection import Found, verify
from showattendtell.features.store import FeatureStore

COLUMNS = ["store", "images", "grid", "size", "shards", "state"]


def print_stores(folder: Path, found: Sequence[Found], former: Sequence[Path]) -> None:
    """A row for each store below the folder, and the files that are read no more."""
    if found:
        print(f"in {folder}")
        print(tabulate([_row(folder, one) for one in found], headers=COLUMNS, disable_numparse=True))
    else:
        print(f"there are no stores of grids in {folder}")
    for one in found:
        if one.fault:
            print(one.fault)
    for file in former:
        print(f"{file} ({decimal(file.stat().st_size)}) is of an earlier version and is not read; it may be removed")


def _row(folder: Path, found: Found) -> list[str]:
    name = str(found.path.relative_to(folder)) if found.path != folder else found.path.name
    about = _about(found.store) if found.store else ("", "")
    return [name, *about, decimal(found.num_bytes), str(found.shards), _state(found)]


def _about(store: FeatureStore) -> tuple[str, str]:
    """Images and grid."""
    rows, columns = store.settings["grid"]
    views = f", {store.views} views" if store.views > 1 else ""
    skipped = f", {len(store.skipped):,} skipped" if store.skipped else ""
    computed = f", computed in {store.settings['precision']}" if "precision" in store.settings else ""
    grid = f"{rows} x {columns} x {store.settings['dim']} {store.settings['dtype']}{views}{computed}"
    return f"{len(store):,}{skipped}", grid


def _state(found: Found) -> str:
    if found.fault:
        return "damaged"
    return "complete" if found.store else f"unfinished, {found.written} of {found.shards} shards"


def verify_stores(found: Sequence[Found]) -> None:
    """Read all that is finished; a `UserError` tells all that is damaged."""
    faults = [one.fault for one in found if one.fault]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for path, store in ((one.path, one.store) for one in found if one.store):
            bar = progress.add_task("verifying", total=len(store) + len(store.skipped))
            try:
                for images in verify(path):
                    progress.advance(bar, images)
                print(f"{path}: every grid is as it was written, and finite")
            except UserError as fault:
                faults.append(str(fault))
    if faults:
        raise UserError("; ".join(faults))
