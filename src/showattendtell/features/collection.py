"""List, verify and merge the feature stores of a cache."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress
from tabulate import tabulate

from showattendtell.errors import UserError
from showattendtell.features.store import (
    MANIFEST,
    PLAN,
    FeatureStore,
    check_same_settings,
    is_finished,
    read_manifest,
    read_record,
    record_file,
    shard_file,
    verify,
    write_json,
)
from showattendtell.features.writer import seal
from showattendtell.runtime.files import new_folder


class FoundStore(NamedTuple):
    """A folder with a store, complete or not.

    num_bytes        size of its files
    shards, written  numbers of its shards, and of the complete ones
    store            None if it is incomplete or unreadable
    error             why it is unreadable
    """

    path: Path
    num_bytes: int
    shards: int
    written: int
    store: FeatureStore | None = None
    error: str = ""


def find_stores(folder: Path) -> list[FoundStore]:
    """Return the stores below a folder, complete or not."""
    stores = []
    for path in sorted({mark.parent for name in (MANIFEST, PLAN) for mark in folder.rglob(name)}):
        shards, size = list(path.glob("*.npy")), sum(file.stat().st_size for file in path.iterdir())
        found = FoundStore(path, size, len(shards), sum(file.with_suffix(".json").exists() for file in shards))
        try:
            stores.append(found._replace(store=FeatureStore(path)) if is_finished(path) else found)
        except UserError as error:
            stores.append(found._replace(error=str(error)))
    return stores


def merge(sources: Sequence[Path], output: Path) -> None:
    """Merge stores with the same encoder and settings into one. Shards are hard links, or copies on another disk.

    Raises:
        UserError: the settings differ, an image is in two stores, or `output` has files.
    """
    manifests = {source: read_manifest(source) for source in sources}
    first = manifests[sources[0]]
    for source, manifest in manifests.items():
        check_same_settings(source, manifest.settings, first.settings)
    shards = [(source, index) for source in sources for index in range(manifests[source].shards)]
    records = [read_record(source, index) for source, index in shards]
    owner: dict[str, Path] = {}
    for (source, _), record in zip(shards, records, strict=True):
        for image in record.images:
            if image in owner:
                raise UserError(f"{image} is both in {owner[image]} and in {source}; merge stores of different images")
            owner[image] = source

    names = dict.fromkeys(manifest.dataset for manifest in manifests.values())
    with new_folder(output, whole=True):
        for target, ((source, index), record) in enumerate(zip(shards, records, strict=True)):
            file, copy = shard_file(source, index), shard_file(output, target)
            try:
                os.link(file, copy)
            except OSError:
                shutil.copyfile(file, copy)
            write_json(record_file(output, target), record)
        seal(output, "+".join(names), first.settings, records)


def print_stores(folder: Path, found: Sequence[FoundStore]) -> None:
    """Print a table of the stores below a folder."""
    if found:
        print(f"in {folder}")
        headers = ["store", "images", "grid", "size", "shards", "state"]
        print(tabulate([_row(folder, store) for store in found], headers=headers, disable_numparse=True))
    else:
        print(f"there are no stores of grids in {folder}")
    for store in found:
        if store.error:
            print(store.error)


def _row(folder: Path, found: FoundStore) -> list[str]:
    name = str(found.path.relative_to(folder)) if found.path != folder else found.path.name
    images = grid = ""
    state = "damaged" if found.error else f"unfinished, {found.written} of {found.shards} shards"
    if store := found.store:
        rows, columns = store.settings["grid"]
        views = f", {store.views} views" if store.views > 1 else ""
        computed = f", computed in {store.settings['precision']}" if "precision" in store.settings else ""
        grid = f"{rows} x {columns} x {store.settings['dim']} {store.settings['dtype']}{views}{computed}"
        images = f"{len(store):,}" + (f", {len(store.skipped):,} skipped" if store.skipped else "")
        state = "complete"
    return [name, images, grid, decimal(found.num_bytes), str(found.shards), state]


def verify_stores(found: Sequence[FoundStore]) -> None:
    """Verify all complete stores. Raise one `UserError` that lists all damaged ones."""
    errors = [found_store.error for found_store in found if found_store.error]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for path, store in ((found_store.path, found_store.store) for found_store in found if found_store.store):
            bar = progress.add_task("verifying", total=len(store) + len(store.skipped))
            try:
                for images in verify(path):
                    progress.advance(bar, images)
                print(f"{path}: checksums match, and all values are finite")
            except UserError as error:
                errors.append(str(error))
    if errors:
        raise UserError("; ".join(errors))
