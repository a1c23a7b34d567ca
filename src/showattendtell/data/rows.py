"""Data sets of Hugging Face's `datasets`, written to a folder that `read_custom` reads."""

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from showattendtell.data.json_formats import read_record
from showattendtell.data.parsing import is_split_field


def write_rows(dataset: Any, cache: Path) -> Path:
    """Write the photographs and captions of a `datasets.Dataset`, or of a `DatasetDict` by split, to a folder.

    Photographs are written as they are stored, once for all rows that have them. A column of names instead of
    photographs is kept.

    Args:
        dataset: what `load_dataset` returns, with a column of images and one or several of captions.
        cache: the folder is in its `data_sets`, under a checksum of the content.

    Raises:
        UserError: a column is missing.
    """
    place = cache / "data_sets"
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as unfinished:
        text = "".join(f"{json.dumps(row)}\n" for row in _rows(dataset, Path(unfinished) / "images"))
        (Path(unfinished) / "captions.jsonl").write_text(text, encoding="utf-8")
        folder = place / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with suppress(OSError):  # it exists, from an earlier run or another process
            os.replace(unfinished, folder)
    return folder


def _rows(dataset: Any, images: Path) -> Iterator[dict[str, Any]]:
    """Yield the image's name, the captions and the split of each row, and write its photograph."""
    splits = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    for split, rows in splits.items():
        features = rows.features or {}
        photographs = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
        for name in photographs:
            rows = rows.cast_column(name, type(features[name])(decode=False))
        for number, row in enumerate(rows):
            for name in photographs[:1]:
                row["image"] = _write_photograph(row.pop(name), images)
            _, image, captions, fields = read_record(row, f"row {number} of {split}")
            named = next((value for field, value in fields.items() if is_split_field(field)), "")
            yield {"image": image, "captions": captions, "split": named or (split if len(splits) > 1 else "")}


def _write_photograph(stored: Mapping[str, Any], images: Path) -> str:
    """Write an encoded photograph, or the file that it names, and return its name."""
    content = stored["bytes"] or Path(stored["path"]).read_bytes()
    with Image.open(io.BytesIO(content)) as image:
        suffix = (image.format or "jpeg").lower()
    path = images / f"{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    images.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path.name
