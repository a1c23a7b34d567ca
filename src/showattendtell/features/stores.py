"""List, verify and merge the feature stores of a cache."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal
from tabulate import tabulate

from showattendtell.errors import UserError
from showattendtell.features.store import (
    MANIFEST,
    FeatureStore,
    ShardRecord,
    check_same_settings,
    is_finished,
    read_manifest,
    read_records,
    record_file,
    shard_file,
    verify,
)
from showattendtell.features.writer import PLAN, seal
from showattendtell.runtime.files import write_json


def find_stores(folder: Path) -> list[Path]:
    """Return the folders of the stores below a folder, complete or not."""
    return sorted({mark.parent for name in (MANIFEST, PLAN) for mark in folder.rglob(name)})


def print_stores(folder: Path) -> None:
    """Print a table of the stores below a folder."""
    stores = find_stores(folder)
    if not stores:
        print(f"there are no stores of grids in {folder}")
        return
    print(f"in {folder}")
    rows = [[str(path.relative_to(folder)), *_describe(path)] for path in stores]
    print(tabulate(rows, headers=["store", "images", "grid", "size", "state"], disable_numparse=True))


def _describe(path: Path) -> list[str]:
    """Return number of images, grid, size and state of a store."""
    size = decimal(sum(file.stat().st_size for file in path.iterdir()))
    if not is_finished(path):
        return ["", "", size, f"unfinished, {len(list(path.glob('*.npy')))} shards"]
    try:
        store = FeatureStore(path)
    except UserError as error:
        return ["", "", size, str(error)]
    rows, columns = store.settings["grid"]
    grid = f"{rows} x {columns} x {store.settings['dim']} {store.settings['dtype']}, {store.views} views"
    if store.settings["precision"] != "float32":
        grid += f", computed in {store.settings['precision']}"
    skipped = f", {len(store.skipped):,} skipped" if store.skipped else ""
    return [f"{len(store):,}{skipped}", grid, size, "complete"]


def verify_stores(folder: Path) -> None:
    """Verify all complete stores below a folder. Raise one `UserError` that lists all damaged shards."""
    errors = []
    for path in filter(is_finished, find_stores(folder)):
        try:
            FeatureStore(path)
            verify(path)
            print(f"{path}: checksums match")
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; ".join(errors))


def merge(sources: Sequence[Path], output: Path) -> None:
    """Merge stores with the same settings into one. Shards are hard links, or copies on another disk.

    Raises:
        UserError: the settings differ, an image is in two stores, or `output` exists.
    """
    if output.exists():
        raise UserError(f"{output} exists already; set output to another folder")
    manifests = [read_manifest(source) for source in sources]
    owner, shards = dict[str, Path](), list[tuple[Path, ShardRecord]]()
    for source, manifest in zip(sources, manifests, strict=True):
        check_same_settings(source, manifest.settings, manifests[0].settings)
        for number, record in enumerate(read_records(source, manifest.shards)):
            shards.append((shard_file(source, number), record))
            for image in record.images:
                if image in owner:
                    raise UserError(f"{image} is both in {owner[image]} and in {source}; leave out one of them")
                owner[image] = source
    partial = output.with_name(f"{output.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for target, (file, record) in enumerate(shards):
        try:
            os.link(file, shard_file(partial, target))
        except OSError:  # another disk
            shutil.copyfile(file, shard_file(partial, target))
        write_json(record.model_dump(), record_file(partial, target))
    names = "+".join(dict.fromkeys(manifest.dataset for manifest in manifests))
    seal(partial, names, manifests[0].settings, len(shards))
    partial.rename(output)
