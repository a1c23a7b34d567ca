"""The stores of a cache: which there are, whether they are whole, and several made one."""

import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from showattendtell.errors import UserError
from showattendtell.features.layout import (
    BATCH_SIZE,
    MANIFEST,
    PLAN,
    ShardRecord,
    damaged,
    grid_type,
    image_bytes,
    is_finished,
    read_manifest,
    read_record,
    record_file,
    refuse_difference,
    shard_file,
    shard_header,
    write_whole,
)
from showattendtell.features.numbers import NUMBERS
from showattendtell.features.store import FeatureStore
from showattendtell.features.writer import seal
from showattendtell.files import advise


class Found(NamedTuple):
    """A store by its folder: so many of its shards are written. `store` is None where it is not finished, or cannot be
    read for the reason in `fault`."""

    path: Path
    num_bytes: int
    shards: int
    written: int
    store: FeatureStore | None = None
    fault: str = ""


def find_stores(folder: Path) -> list[Found]:
    """The stores below a folder, finished or not."""
    marks = [mark for name in (MANIFEST, PLAN) for mark in folder.rglob(name)]
    return [_look_at(path) for path in sorted({mark.parent for mark in marks})]


def find_former(folder: Path) -> list[Path]:
    """Stores of the former format, single files."""
    return sorted(folder.rglob("*.safetensors"))


def _look_at(path: Path) -> Found:
    shards = list(path.glob("*.npy"))
    size = sum(file.stat().st_size for file in path.iterdir())
    found = Found(path, size, len(shards), sum(file.with_suffix(".json").exists() for file in shards))
    try:
        return found._replace(store=FeatureStore(path)) if is_finished(path) else found
    except UserError as fault:
        return found._replace(fault=str(fault))


def verify(path: Path) -> Iterator[int]:
    """Read a whole store, and give the images of each batch that is as it was written and finite.

    Raises `UserError` for the first one that is not.
    """
    manifest = read_manifest(path)
    numbers, grid = NUMBERS[manifest.settings["dtype"]], grid_type(manifest.settings)
    for number in range(manifest.shards):
        record = read_record(path, number)
        with shard_file(path, number).open("rb", buffering=0) as file:
            advise(file.fileno(), "SEQUENTIAL")
            if file.read(len(header := shard_header(manifest.settings, len(record.images)))) != header:
                raise damaged(path, f"the head of {shard_file(path, number).name}")
            for batch, checksum in enumerate(record.checksums):
                images = record.images[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]
                content = file.read(len(images) * image_bytes(manifest.settings))
                if zlib.crc32(content) != checksum:
                    raise damaged(path, f"the grids of {images[0]} to {images[-1]} are not what was written")
                if not numbers.are_finite(np.frombuffer(content, grid.base)):
                    raise damaged(path, f"the grids of {images[0]} to {images[-1]} are not finite")
                yield len(images)


def merge(sources: Sequence[Path], output: Path) -> None:
    """One store with the images of several, made by the same encoder in the same way. Shards on the same disk are
    shared by both, others are copied.

    Raises `UserError` where the encoders differ, an image is in two of them, or `output` is there already.
    """
    if output.exists():
        raise UserError(f"{output} is there already; give another folder as output")
    manifests = {source: read_manifest(source) for source in sources}
    first = manifests[sources[0]]
    for source, manifest in manifests.items():
        refuse_difference(source, manifest.settings, first.settings)
    shards = [(source, number) for source in sources for number in range(manifests[source].shards)]
    records = [read_record(source, number) for source, number in shards]
    _refuse_common([source for source, _ in shards], records)

    unfinished = output.with_name(f"{output.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for target, ((source, number), record) in enumerate(zip(shards, records, strict=True)):
        _share(shard_file(source, number), shard_file(unfinished, target))
        write_whole(record_file(unfinished, target), record)
    names = dict.fromkeys(manifest.dataset for manifest in manifests.values())
    seal(unfinished, "+".join(names), first.settings, records)
    unfinished.rename(output)


def _refuse_common(sources: Sequence[Path], records: Sequence[ShardRecord]) -> None:
    owner: dict[str, Path] = {}
    for source, record in zip(sources, records, strict=True):
        for image in record.images:
            if image in owner:
                raise UserError(f"{image} is both in {owner[image]} and in {source}; merge stores of different images")
            owner[image] = source


def _share(file: Path, target: Path) -> None:
    """The same content under another name: a link where the disk allows."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
