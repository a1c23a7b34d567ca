"""A shard while it is written: its file, and the journal from which work goes on after an interruption."""

import os
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from showattendtell.arguments import NonNegativeInt
from showattendtell.errors import UserError
from showattendtell.features.layout import (
    BATCH_SIZE,
    ShardRecord,
    grid_type,
    image_bytes,
    journal_file,
    record_file,
    shard_header,
    write_whole,
)
from showattendtell.features.numbers import NUMBERS
from showattendtell.features.plan import Encoded, Plan, telling_faults


class Line(BaseModel):
    """What the journal says of a batch."""

    batch: NonNegativeInt
    checksum: int
    skipped: dict[str, str]
    lost: float
    whole: float


class Shard:
    """A part of a store, written in batches by one process; its journal tells the next process what is done."""

    def __init__(self, path: Path, plan: Plan, number: int, images: Sequence[str], file: int):
        self._path, self._plan, self._number, self._images, self._file = path, plan, number, images, file
        self._numbers = NUMBERS[plan.settings["dtype"]]
        self._image_bytes = image_bytes(plan.settings)
        self._header_bytes = len(shard_header(plan.settings, len(images)))
        self._lines: dict[int, Line] = {}
        with self._telling_faults():
            self._journal = journal_file(path, number).open("a+b", buffering=0)
            self._read_journal()

    def close(self) -> None:
        self._journal.close()

    def batch(self, number: int) -> Sequence[str]:
        """The images of a batch."""
        return self._images[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]

    def remaining(self) -> list[int]:
        """The batches that are still to be written, in order."""
        return [batch for batch in range(-(-len(self._images) // BATCH_SIZE)) if batch not in self._lines]

    def write(self, batch: int, encoded: Encoded) -> None:
        """Write a batch, each image's grids at its own place, and note it in the journal."""
        images = self.batch(batch)
        packed = np.zeros((len(images), self._plan.settings["views"]), grid_type(self._plan.settings))
        lost = whole = 0.0
        if encoded.images:
            grids = encoded.grids.flatten(0, 1)
            own = self._numbers.pack(grids)
            if not self._numbers.are_finite(own):
                raise UserError(
                    f"the grids of {encoded.images[0]} and others do not fit into {self._plan.settings['dtype']}; "
                    "choose another encoder.stride"
                )
            lost = (self._numbers.unpack(own).double() - grids.double()).square().sum().item()
            whole = grids.double().square().sum().item()
            packed[[images.index(image) for image in encoded.images]] = own.reshape(-1, *packed.shape[1:])
        content = packed.tobytes()
        line = Line(batch=batch, checksum=zlib.crc32(content), skipped=dict(encoded.skipped), lost=lost, whole=whole)
        with self._telling_faults():
            self._write_at(self._offset(batch), content)
            self._write_line(line.model_dump_json().encode() + b"\n")
        self._lines[batch] = line

    def finish(self) -> None:
        """Write the shard's record, which ends its journal."""
        lines = [self._lines[batch] for batch in sorted(self._lines)]
        record = ShardRecord(
            images=list(self._images),
            skipped={image: reason for line in lines for image, reason in line.skipped.items()},
            checksums=[line.checksum for line in lines],
            lost=sum(line.lost for line in lines),
            whole=sum(line.whole for line in lines),
        )
        with self._telling_faults():
            os.fsync(self._file)
            write_whole(record_file(self._path, self._number), record)
            journal_file(self._path, self._number).unlink()

    def _offset(self, batch: int) -> int:
        return self._header_bytes + batch * BATCH_SIZE * self._image_bytes

    def _write_at(self, offset: int, content: bytes) -> None:
        """Write all of it: a disk that is nearly full takes a part and says so only at the next call."""
        view = memoryview(content)
        while view:
            count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count

    def _write_line(self, line: bytes) -> None:
        while line:
            line = line[self._journal.write(line) :]

    def _read_journal(self) -> None:
        """What an interrupted process left: the lines that are whole and true of the shard."""
        self._journal.seek(0)
        content = self._journal.read()
        for line in content.split(b"\n"):
            with suppress(ValidationError):
                told = Line.model_validate_json(line)
                if self._is_true(told):
                    self._lines[told.batch] = told
        if content and not content.endswith(b"\n"):
            self._write_line(b"\n")

    def _is_true(self, line: Line) -> bool:
        images = self.batch(line.batch)
        content = os.pread(self._file, len(images) * self._image_bytes, self._offset(line.batch)) if images else b""
        return bool(images) and zlib.crc32(content) == line.checksum and set(line.skipped) <= set(images)

    def _telling_faults(self) -> AbstractContextManager[None]:
        return telling_faults(self._path, self._plan)
