"""Write feature stores in several processes, with journals from which interrupted work resumes.

Every process that writes holds a shared lock on the folder, and an exclusive one on its shard. Laying out and
completing a store need an exclusive lock on the folder. The locks are those of `flock`, which end with their process.
"""

import fcntl
import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from showattendtell.errors import UserError
from showattendtell.features.store import (
    BATCH_SIZE,
    FORMAT,
    MANIFEST,
    PLAN,
    STORAGE_FORMATS,
    Encode,
    EncodedBatch,
    FileStamp,
    Manifest,
    Settings,
    ShardRecord,
    StorePlan,
    grid_type,
    image_bytes,
    is_finished,
    journal_file,
    read_record,
    record_file,
    report_write_errors,
    shard_bytes,
    shard_file,
    shard_header,
    write_json,
)
from showattendtell.runtime.files import open_folder, preallocate
from showattendtell.settings import NonNegativeInt


class JournalLine(BaseModel):
    """Journal entry of a batch; for the fields see `ShardRecord`."""

    batch: NonNegativeInt
    checksum: int
    skipped: dict[str, str]
    lost: float
    whole: float
    stamps: dict[str, FileStamp] = {}


class Shard:
    """A shard that this process writes in batches; its journal has a line for each complete batch.

    Args:
        file: the shard's file, which is closed when the shard is complete.
    """

    def __init__(self, path: Path, plan: StorePlan, number: int, images: Sequence[str], file: FileIO):
        self._path, self._plan, self._number, self._images, self._file = path, plan, number, images, file
        self._numbers = STORAGE_FORMATS[plan.settings["dtype"]]
        self._header_bytes = len(shard_header(plan.settings, len(images)))
        self._batch_bytes = BATCH_SIZE * image_bytes(plan.settings)
        self._lines: dict[int, JournalLine] = {}
        with report_write_errors(self._path, self._plan):
            self._journal = journal_file(path, number).open("a+b", buffering=0)
            self._read_journal()

    def batch(self, number: int) -> Sequence[str]:
        """Return the images of a batch."""
        return self._images[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]

    def remaining(self) -> list[int]:
        """Return the batches still to be written, in order."""
        return [batch for batch in range(-(-len(self._images) // BATCH_SIZE)) if batch not in self._lines]

    def write(self, batch: int, encoded: EncodedBatch) -> None:
        """Write a batch to its place in the file, and record it in the journal.

        Raises:
            UserError: values are too large for the number format, or the disk is full.
        """
        images = self.batch(batch)
        packed = np.zeros((len(images), self._plan.settings["views"]), grid_type(self._plan.settings))
        lost = whole = 0.0
        if encoded.images:
            grids = encoded.grids.flatten(0, 1)
            packed_grids = self._numbers.pack(grids)
            if not self._numbers.are_finite(packed_grids):
                raise UserError(
                    f"the grids of {encoded.images[0]} and others do not fit into {self._plan.settings['dtype']}; "
                    "choose another encoder.stride"
                )
            lost = (self._numbers.unpack(packed_grids).double() - grids.double()).square().sum().item()
            whole = grids.double().square().sum().item()
            packed[[images.index(image) for image in encoded.images]] = packed_grids.reshape(-1, *packed.shape[1:])
        content = packed.tobytes()
        line = JournalLine(
            batch=batch,
            checksum=zlib.crc32(content),
            skipped=dict(encoded.skipped),
            lost=lost,
            whole=whole,
            stamps=dict(encoded.stamps),
        )
        with report_write_errors(self._path, self._plan):
            view, offset = memoryview(content), self._header_bytes + batch * self._batch_bytes
            while view:  # on a nearly full disk, `pwrite` writes a part and fails only at the next call
                count = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[count:], offset + count
            self._write_line(line.model_dump_json().encode() + b"\n")
        self._lines[batch] = line

    def finish(self) -> None:
        """Write the record of the complete shard, which replaces the journal."""
        lines = [self._lines[batch] for batch in sorted(self._lines)]
        record = ShardRecord(
            images=list(self._images),
            skipped={image: reason for line in lines for image, reason in line.skipped.items()},
            checksums=[line.checksum for line in lines],
            lost=sum(line.lost for line in lines),
            whole=sum(line.whole for line in lines),
            stamps={image: stamp for line in lines for image, stamp in line.stamps.items()},
        )
        with report_write_errors(self._path, self._plan):
            os.fsync(self._file.fileno())
            write_json(record_file(self._path, self._number), record)
            journal_file(self._path, self._number).unlink()
        self.close()

    def close(self) -> None:
        """Close the files, which gives up the lock on the shard."""
        self._journal.close()
        self._file.close()

    def _write_line(self, line: bytes) -> None:
        while line:
            line = line[self._journal.write(line) :]

    def _read_journal(self) -> None:
        """Read the journal of an interrupted process. Lines count only if the file has the batch that they describe."""
        self._journal.seek(0)
        content = self._journal.read()
        for line in content.split(b"\n"):
            with suppress(ValidationError):
                entry = JournalLine.model_validate_json(line)
                if images := self.batch(entry.batch):
                    size = len(images) * image_bytes(self._plan.settings)
                    written = os.pread(self._file.fileno(), size, self._header_bytes + entry.batch * self._batch_bytes)
                    if zlib.crc32(written) == entry.checksum and set(entry.skipped) <= set(images):
                        self._lines[entry.batch] = entry
        if content and not content.endswith(b"\n"):
            self._write_line(b"\n")


def write_store(path: Path, plan: StorePlan, work: Callable[[], None]) -> None:
    """Call `work`, which calls `write_shards`, until the store is complete.

    Shards of other processes are waited for, and written here if those processes are killed. Space for all images is
    reserved at the start.

    Raises:
        UserError: another process writes a store with other settings there, or the disk is full.
    """
    with report_write_errors(path, plan):
        path.mkdir(parents=True, exist_ok=True)
    with open_folder(path) as folder:
        while _join(folder, path, plan):
            work()
            with report_write_errors(path, plan):
                fcntl.flock(folder, fcntl.LOCK_EX)
                numbers = range(len(plan.shards))
                if not is_finished(path) and all(record_file(path, number).exists() for number in numbers):
                    seal(path, plan.dataset, plan.settings, [read_record(path, number) for number in numbers])
                    for file in [path / PLAN, *path.glob("*.progress"), *path.glob("*.tmp")]:
                        file.unlink(missing_ok=True)


def write_shards(path: Path, plan: StorePlan, encode: Encode, numbers: Iterable[int] | None = None) -> None:
    """Write all shards that no other process writes or has written.

    Args:
        numbers: of the shards; by default all.
    """
    with open_folder(path) as folder, ExitStack() as opened:
        fcntl.flock(folder, fcntl.LOCK_SH)
        claimed = deque[tuple[Shard, int]]()

        def batches() -> Iterator[Sequence[str]]:
            for number in range(len(plan.shards)) if numbers is None else numbers:
                if shard := _claim(path, plan, number):
                    opened.callback(shard.close)
                    for batch in shard.remaining():
                        claimed.append((shard, batch))
                        yield shard.batch(batch)

        for encoded in encode(batches()):  # which may have claimed the next shards already
            shard, batch = claimed.popleft()
            shard.write(batch, encoded)
            if not shard.remaining():
                shard.finish()


def _claim(path: Path, plan: StorePlan, number: int) -> Shard | None:
    """Lock a shard and return it, if it has remaining batches and no other process writes it."""
    with ExitStack() as opened:
        file = opened.enter_context(shard_file(path, number).open("r+b", buffering=0))
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not record_file(path, number).exists():
                shard = Shard(path, plan, number, plan.shards[number], file)
                if shard.remaining():
                    opened.pop_all()
                    return shard
                shard.finish()  # its process was killed before it wrote the record
    return None


def count_written(path: Path, plan: StorePlan) -> int:
    """Return the number of images in the complete batches of an unfinished store."""
    written = 0
    for i, images in enumerate(plan.shards):
        try:
            written += min(journal_file(path, i).read_bytes().count(b"\n") * BATCH_SIZE, len(images))
        except FileNotFoundError:
            written += len(images) if record_file(path, i).exists() else 0
    return written


def _join(folder: int, path: Path, plan: StorePlan) -> bool:
    """Take a shared lock on the folder, which the first process lays out. Return whether work is left."""
    with report_write_errors(path, plan):
        with suppress(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sizes = {
                shard_file(path, n): shard_bytes(plan.settings, len(images)) for n, images in enumerate(plan.shards)
            }
            is_complete = all(file.is_file() and file.stat().st_size == size for file, size in sizes.items())
            if not is_finished(path) and not (is_complete and _read_plan(path) == plan.describe()):
                _prepare_files(path, plan)
        fcntl.flock(folder, fcntl.LOCK_SH)
    if is_finished(path):
        return False
    if _read_plan(path) != plan.describe():
        raise UserError(f"{path} is being written by another process with other settings; wait until it is done")
    return True


def _read_plan(path: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads((path / PLAN).read_bytes())
    return None


def _prepare_files(path: Path, plan: StorePlan) -> None:
    """Remove the shards of another plan, and reserve space for all images."""
    _remove_shards(path, path / PLAN)
    try:
        for i, images in enumerate(plan.shards):
            with shard_file(path, i).open("wb") as file:
                preallocate(file.fileno(), shard_bytes(plan.settings, len(images)))
                file.write(shard_header(plan.settings, len(images)))
        write_json(path / PLAN, plan.describe())
    except OSError:
        _remove_shards(path)
        raise


def _remove_shards(path: Path, *others: Path) -> None:
    """Remove the files of shards, complete or not, after other files."""
    kinds = (".npy", ".json", ".progress", ".tmp")
    for file in [*others, *(file for file in path.iterdir() if file.suffix in kinds and file.stem.isdigit())]:
        file.unlink(missing_ok=True)


def seal(path: Path, dataset: str, settings: Settings, records: Sequence[ShardRecord]) -> None:
    """Complete a store by writing its manifest."""
    lost, whole = sum(record.lost for record in records), sum(record.whole for record in records)
    manifest = Manifest(
        format=FORMAT,
        dataset=dataset,
        settings=dict(settings),
        shards=len(records),
        relative_error=(lost / whole) ** 0.5 if whole else 0.0,
    )
    write_json(path / MANIFEST, manifest)
