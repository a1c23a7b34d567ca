"""The grids of a data set in one file: fp16, memory-mapped, with a header that says how they were made.

The file is a safetensors file with one tensor `grids` (images, L, D); its metadata hold the settings and the image
names. While it is being written it is `NAME.part` beside a journal `NAME.progress`, a line a batch, from which an
interrupted run continues.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal
from safetensors import SafetensorError, safe_open
from torch import Tensor

from showattendtell.errors import UserError

Settings = Mapping[str, Any]


class FeatureStore:
    """Grids by row, read from the memory-mapped file when they are asked for.

    Raises `UserError` where the file was made with other settings than `expected`, naming the first difference.
    """

    def __init__(self, path: Path, expected: Settings):
        self.path = path
        try:
            with safe_open(path, framework="pt") as file:
                metadata = {name: json.loads(value) for name, value in file.metadata().items()}
                self.grids: Tensor = file.get_tensor("grids")
            settings, images = metadata["settings"], metadata["images"]
            self.skipped: list[str] = metadata["skipped"]
        except (SafetensorError, OSError) as fault:
            raise UserError(f"{path} is damaged ({fault}); remove it and it will be made again") from None
        except (AttributeError, KeyError, ValueError):
            raise UserError(f"{path} is no store of grids; remove it and it will be made again") from None
        refuse_difference(path, settings, expected)
        self._rows = {image: row for row, image in enumerate(images)}

    def rows(self, images: Sequence[str]) -> Tensor:
        """The rows of the named images; a `UserError` for one that the file lacks."""
        unknown = [image for image in images if image not in self._rows]
        if unknown:
            raise UserError(
                f"{self.path} lacks {len(unknown)} of the data set's images, the first is {unknown[0]}; remove the "
                "file and it will be made again"
            )
        return torch.tensor([self._rows[image] for image in images], dtype=torch.long)

    def __contains__(self, image: str) -> bool:
        return image in self._rows

    def __getitem__(self, rows: Tensor) -> Tensor:
        """(I,) rows to (I, L, D) grids, fp16."""
        return self.grids[rows]


def refuse_difference(path: Path, made_with: Settings, expected: Settings) -> None:
    """Raise a `UserError` that names the first setting in which the two differ."""
    for key in {**made_with, **expected}:
        ours, theirs = expected.get(key), made_with.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            refuse_difference(path, theirs, ours)
        elif ours != theirs:
            raise UserError(
                f"{path} was made with {key}={theirs}, this run has {key}={ours}; set cache to another "
                "folder, or remove this file and it will be made again"
            )


class FeatureWriter:
    """Writes a store batch by batch; a new writer on the same path continues where a killed one stopped.

    Space for all images is taken at the start, so a full disk is known before any work is done.
    """

    def __init__(self, path: Path, settings: Settings, images: Sequence[str]):
        self.path, self.settings, self.images = path, settings, list(images)
        self.shape = (settings["grid"][0] * settings["grid"][1], settings["dim"])
        self.written: list[str] = []
        self.skipped: dict[str, str] = {}
        self._header_bytes = _round_up(len(self._header(self.images)) + 8, 4096)
        self._row_bytes = self.shape[0] * self.shape[1] * 2
        self._part, self._journal = Path(f"{path}.part"), Path(f"{path}.progress")

    @property
    def num_bytes(self) -> int:
        return self._header_bytes + self._row_bytes * len(self.images)

    def __enter__(self) -> "FeatureWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._lock()
        except OSError as fault:
            raise self._cannot_write(fault) from None
        try:
            self._continue()
        except OSError as fault:
            if not self.written:
                self._part.unlink()
            os.close(self._file)
            raise self._cannot_write(fault) from None
        return self

    def _continue(self) -> None:
        """Take up what an interrupted run left, or start anew, and take the space for all images."""
        self._read_journal()
        if not (self.written or self.skipped):
            os.ftruncate(self._file, 0)
            self._journal.write_bytes(b"")
        os.posix_fallocate(self._file, 0, self.num_bytes)
        if not self._journal.stat().st_size:
            self._write_line(self._first_line)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _lock(self) -> int:
        """The unfinished file, opened for this process alone."""
        file = os.open(self._part, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise UserError(f"{self.path} is being written by another process; wait until it is done") from None
        return file

    def remaining(self) -> list[str]:
        """The images that are still to be written, in order."""
        done = {*self.written, *self.skipped}
        return [image for image in self.images if image not in done]

    def write(self, images: Sequence[str], grids: Tensor, skipped: Mapping[str, str]) -> None:
        """Append a batch: the grids (len(images), L, D), and the images that could not be read with the reason."""
        offset = self._header_bytes + len(self.written) * self._row_bytes
        half = grids.to(torch.float16)
        if not half.isfinite().all():
            raise UserError(f"the grids of {images[0]} and others do not fit into fp16; choose another encoder.stride")
        try:
            self._write_at(offset, half.contiguous().numpy().tobytes())
            self._write_line({"images": list(images), "skipped": dict(skipped)})
        except OSError as fault:
            raise self._cannot_write(fault) from None
        self.written += images
        self.skipped |= skipped

    def finish(self) -> None:
        """Write the header, cut the file to what was written, and give it its name."""
        header = self._header(self.written).ljust(self._header_bytes - 8)
        try:
            self._write_at(0, len(header).to_bytes(8, "little") + header)
            os.ftruncate(self._file, self._header_bytes + len(self.written) * self._row_bytes)
            os.fsync(self._file)
            self._part.rename(self.path)
            self._journal.unlink()
        except OSError as fault:
            raise self._cannot_write(fault) from None

    def _write_at(self, offset: int, content: bytes) -> None:
        """Write all of it: a disk that is nearly full takes a part and says so only at the next call."""
        view = memoryview(content)
        while view:
            count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count

    def _header(self, images: Sequence[str]) -> bytes:
        num_bytes = len(images) * self.shape[0] * self.shape[1] * 2
        tensor = {"dtype": "F16", "shape": [len(images), *self.shape], "data_offsets": [0, num_bytes]}
        metadata = {"settings": self.settings, "images": images, "skipped": list(self.skipped)}
        return json.dumps({"__metadata__": {k: json.dumps(v) for k, v in metadata.items()}, "grids": tensor}).encode()

    def _read_journal(self) -> None:
        """What an interrupted run left, if it can be trusted, else nothing. A torn last line does not count."""
        if not (self._journal.exists() and self._part.stat().st_size):
            return
        complete = self._journal.read_bytes().rpartition(b"\n")[0]
        try:
            first, *lines = [json.loads(line) for line in complete.decode().split("\n")]
            written = [image for line in lines for image in line["images"]]
            skipped = {image: reason for line in lines for image, reason in line["skipped"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            return
        known = [*written, *skipped]
        if first == self._first_line and len(set(known)) == len(known) and set(known) <= set(self.images):
            self.written, self.skipped = written, skipped
            self._journal.write_bytes(complete + b"\n")

    @property
    def _first_line(self) -> dict[str, Any]:
        """What must be equal for an interrupted run to be continued, as JSON gives it back."""
        return json.loads(json.dumps({"settings": self.settings, "header_bytes": self._header_bytes}))

    def _write_line(self, line: Mapping[str, Any]) -> None:
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")

    def _cannot_write(self, fault: OSError) -> UserError:
        return UserError(
            f"{self.path} cannot be written ({fault.strerror}); it needs {decimal(self.num_bytes)}: make room, or "
            "set cache to a folder on another disk"
        )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
