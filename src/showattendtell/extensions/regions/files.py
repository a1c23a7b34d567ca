"""Read the regions that detectors have stored, in the layouts of the repositories that publish them.

A region has features and a box. Nothing in these files is executed: arrays of objects, which numpy would unpickle, are
refused, and the size of every array is checked before it is read.
"""

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from showattendtell.data.images import image_size
from showattendtell.errors import UserError, first_line, printable
from showattendtell.features.writer import EncodedBatch
from showattendtell.runtime.files import check_regular

BOX = 4
"""Number of channels with the box: left, top, right and bottom in fractions of the photograph's width and height."""

LONGEST_LINE = 2**26
"""Largest number of bytes in a line of a .tsv file; 100 regions of 2048 channels take 2^20."""

ARRAYS = {"feat", "x", "bbox", "image_w", "image_h"}
"""Names of the arrays of a .npz file that are read: features under one of two names, and the rest if it is there."""

LARGEST = 2**22
"""Largest number of values in the features of an image; 100 regions of 2048 channels are 200,000."""

SMALLEST = 2.0**-10
"""Smallest width and height of a box, in fractions of the photograph; a box without an area would hold no weight."""

TOLERANCE = 0.02
"""How far a box may reach beyond its photograph, in fractions of it, before it counts as that of another one."""


class StoredRegions(NamedTuple):
    """The regions of an image as a file has them.

    features  (n, D)
    boxes     (n, 4) left, top, right and bottom in pixels, or in fractions of the photograph
    size      width and height of the photograph, if the file knows them
    """

    features: NDArray
    boxes: NDArray
    size: tuple[float, float] | None = None


def image_ids(image: str) -> list[str]:
    """Return the ids under which files may list an image: its name, the name without suffix, and the number at the end
    of that, such as 391895 for `COCO_val2014_000000391895.jpg`."""
    name = PurePath(image).name
    base = name.removesuffix(PurePath(name).suffix)
    number = base.rpartition("_")[2]
    return list(dict.fromkeys([name, base, *([str(int(number))] if number.isascii() and number.isdigit() else [])]))


Read = Callable[[str], StoredRegions | None]
"""Returns the regions that a file lists under an id; None if it has none."""


def open_regions(path: Path, boxes: Path | None = None) -> Read:
    """Open a file or folder of regions, whose layout follows from its name.

    Args:
        boxes: the folder of the boxes, if `path` is a folder without them.

    Raises:
        UserError: it is missing, damaged or of an unknown layout.
    """
    if not path.exists():
        raise UserError(f"encoder.features={path} does not exist; give a file or folder with the regions of images")
    with report_read_errors(path):
        if ".tsv" in path.suffixes or any(path.glob("*.tsv*")):
            return _open_tsv(path)
        if any(path.glob("*.npz")):
            return _open_npz(path, boxes)
        if path.suffix in (".h5", ".hdf5"):
            return _open_h5(path)
    raise UserError(
        f"encoder.features={path} is of an unknown layout; give a .tsv, .h5 or .hdf5 file, or a folder of .tsv or of "
        ".npz files"
    )


def _open_tsv(path: Path) -> Read:
    """Open tab-separated lines of image id, width, height, number of boxes, and boxes and features as float32 in
    base64: a file, or a folder of such files, as of a split in parts."""
    lines: dict[str, tuple[Path, int]] = {}  # the file and position of each image's line
    for file in sorted(path.glob("*.tsv*")) if path.is_dir() else [path]:
        check_regular(file)
        with file.open("rb") as stream:
            position = 0
            while line := stream.readline(LONGEST_LINE):
                lines.setdefault(line[: line.find(b"\t")].decode("utf-8", "replace"), (file, position))
                position += len(line)

    def read(image: str) -> StoredRegions | None:
        if image not in lines:
            return None
        file, position = lines[image]
        with file.open("rb") as stream:
            stream.seek(position)
            cells = stream.readline(LONGEST_LINE).rstrip(b"\r\n").split(b"\t")
        _, width, height, _, *encoded = cells
        boxes, features = (np.frombuffer(base64.b64decode(text, validate=True), np.dtype("<f4")) for text in encoded)
        corners = boxes.reshape(-1, BOX)
        return StoredRegions(features.reshape(len(corners), -1), corners, (float(width), float(height)))

    return read


def _open_npz(path: Path, boxes: Path | None) -> Read:
    """Open a folder with a file `ID.npz` for each image: `feat`, and boxes in `ID.npy` of the folder `boxes`; or `x`
    and `bbox`, with `image_w` and `image_h`."""
    if boxes and not boxes.is_dir():
        raise UserError(f"encoder.boxes={boxes} is not a folder; give the folder with the boxes of {path}")
    box_folder = boxes or path.parent / f"{path.name.removesuffix('_att')}_box"

    def read(image: str) -> StoredRegions | None:
        file, separate = path / f"{image}.npz", box_folder / f"{image}.npy"
        if not file.is_file():
            return None
        with np.load(file, allow_pickle=False) as archive:
            for member in archive.zip.infolist():  # a zip may unpack to any size
                _check_size(member.filename, member.file_size)
            arrays = {name: archive[name] for name in archive.files if name in ARRAYS}
        if separate.is_file():
            _check_size(separate.name, separate.stat().st_size)
            arrays.setdefault("bbox", np.load(separate, allow_pickle=False))
        features = arrays.get("feat", arrays.get("x"))
        if features is None:
            raise ValueError(f"{file.name} has none of the arrays feat and x")
        if "bbox" not in arrays:
            raise ValueError(f"{file.name} has no boxes; give their folder as encoder.boxes=FOLDER")
        size = (arrays["image_w"].item(), arrays["image_h"].item()) if "image_w" in arrays else None
        return StoredRegions(features, arrays["bbox"], size)

    return read


def _open_h5(path: Path) -> Read:
    """Open an HDF5 file with `ID_features` and `ID_boxes` of each image."""
    try:
        import h5py  # an optional dependency
    except ImportError:
        package = "pip install 'showattendtell[regions]'"
        raise UserError(f"{path} needs the package h5py; install it with: {package}") from None
    check_regular(path)
    file = h5py.File(path, "r")

    def values(name: str) -> NDArray:
        # a link could lead to another file, and a virtual or external data set has its values in one
        dataset = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
        if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external:
            raise ValueError(f"{name} is not an array in this file")
        if dataset.dtype.kind not in "fiu":
            raise ValueError(f"{name} has the type {dataset.dtype} instead of numbers")
        _check_size(name, math.prod(dataset.shape) * dataset.dtype.itemsize)
        return np.asarray(dataset[()])

    def read(image: str) -> StoredRegions | None:
        if f"{image}_features" not in file:
            return None
        return StoredRegions(values(f"{image}_features"), values(f"{image}_boxes"))

    return read


def _check_size(name: str, num_bytes: int) -> None:
    """Raise `ValueError` for an array that is larger than regions of an image are, before it is read."""
    if num_bytes > 8 * LARGEST:
        raise ValueError(f"{name} has more than {LARGEST:,} values")


@contextmanager
def report_read_errors(path: Path, image: str = "") -> Iterator[None]:
    """Convert the errors of reading a damaged file to `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # zlib, zipfile, base64, numpy and h5py raise many types for damaged files
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"{path} cannot be read ({printable(image)}{': ' * bool(image)}{reason}); get it again, or give another as "
            "encoder.features"
        ) from None


@dataclass(frozen=True)
class RegionReading:
    """An `Encode` that reads regions instead of computing them.

    path, read: the opened file or folder of regions.
    paths: image files by name, for the size of photographs that the file does not state.
    dim: D, the width of a region.
    max_regions: the largest number of regions of an image.
    """

    path: Path
    read: Read
    paths: Mapping[str, str]
    skip_unreadable: bool
    dim: int
    max_regions: int

    def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        """Yield the regions of batches of images, given by their names.

        Raises:
            UserError: an image has no regions or damaged ones, unless such images are skipped.
        """
        for images in batches:
            grids, skipped = dict[str, NDArray](), dict[str, str]()
            for image in images:
                try:
                    with report_read_errors(self.path, image):
                        regions = self._regions(image)
                except UserError as error:
                    if not self.skip_unreadable:
                        raise UserError(f"{error}, or skip such images with dataset.skip_unreadable=true") from None
                    skipped[image] = str(error)
                else:
                    grids[image] = np.pad(regions, ((0, self.max_regions - len(regions)), (0, 0)))
            values = np.array([*grids.values()], np.float32).reshape(-1, 1, self.max_regions, self.dim + BOX)
            yield EncodedBatch(list(grids), torch.from_numpy(values), skipped)

    def _regions(self, image: str) -> NDArray[np.float32]:
        """Return the features and boxes (n, D + 4) of an image."""
        stored = next(filter(None, map(self.read, image_ids(image))), None)
        if stored is None:
            raise UserError(f"{self.path} has no regions of {image}; give a file with all images of the data set")
        dim, max_regions = self.dim, self.max_regions
        features, boxes = stored.features.astype(np.float32), stored.boxes.astype(np.float64)
        if features.ndim != 2 or boxes.shape != (len(features), BOX):
            raise ValueError(f"features of shape {features.shape} with boxes of shape {boxes.shape}")
        if features.shape[1] != dim:
            raise UserError(
                f"{self.path} has regions of {features.shape[1]} values; give encoder.dim={features.shape[1]}"
            )
        if not (np.isfinite(features).all() and np.isfinite(boxes).all()):
            raise ValueError("values that are not finite")
        is_region = features.any(axis=1)  # a region of zeros is padding of the file
        features, boxes = features[is_region], boxes[is_region]
        if not 0 < len(features) <= max_regions:
            raise UserError(
                f"{self.path} has {len(features)} regions of {image}, and encoder.max_regions={max_regions} reads "
                f"1 to {max_regions}; give another file, or a larger encoder.max_regions"
            )
        return np.concatenate([features, self._in_fractions(boxes, stored.size, image)], axis=1, dtype=np.float32)

    def _in_fractions(self, boxes: NDArray, size: tuple[float, float] | None, image: str) -> NDArray:
        """Return boxes in fractions of the photograph, each with an area. Those of which no side is longer than 1 are
        in fractions already."""
        if boxes.max() > 1 + TOLERANCE:
            width, height = size or image_size(self.paths[image])
            boxes = boxes / [width, height, width, height]
        if (boxes[:, :2] > boxes[:, 2:]).any():
            raise ValueError("boxes whose corners are not left, top, right, bottom")
        if not (boxes.min() >= -TOLERANCE and boxes.max() <= 1 + TOLERANCE):  # so that NaN is refused, as of 0 / 0
            raise ValueError("boxes that reach beyond the photograph: they are of another size of it")
        corners = boxes[:, :2].clip(0, 1 - SMALLEST)
        return np.concatenate([corners, np.maximum(boxes[:, 2:].clip(0, 1), corners + SMALLEST)], axis=1)
