"""Caption files of any origin: which are meant, and of which form each is."""

import re
from collections.abc import Callable, Iterable, Sequence
from glob import glob
from pathlib import Path

from showattendtell.data.caption_forms import (
    CaptionFile,
    find_delimiter,
    read_coco_captions,
    read_coco_results,
    read_json_lines,
    read_karpathy,
    read_plain_lines,
    read_results,
    read_table,
    read_token_file,
)
from showattendtell.data.text_files import parse_json, read_text
from showattendtell.errors import UserError

Reader = Callable[[Path], CaptionFile]

LAYOUTS: dict[tuple[str, ...], Reader] = {
    ("captions", "references"): read_results,
    ("images", "annotations"): read_coco_captions,
    ("images",): read_karpathy,
}
"""The reader for a JSON object that has these keys; the first that fits counts."""


def find_caption_files(given: str | Sequence[str]) -> list[Path]:
    """The files that are meant, each once; a pattern such as `ref*` means all that it fits.

    Raises `UserError` for a pattern that fits none.
    """
    names = [given] if isinstance(given, str) else given
    return list(dict.fromkeys(path for name in names for path in _fitting(name)))


def _fitting(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.exists() or not set(name) & set("*?["):
        return [path]
    found = sorted(map(Path, glob(str(path), recursive=True)))
    if not found:
        raise UserError(f"no file fits {name}")
    return found


def read_all(paths: Iterable[Path]) -> dict[Path, CaptionFile]:
    """Every file, each read once; one `UserError` tells the faults of all."""
    files, faults = {}, []
    for path in dict.fromkeys(paths):
        try:
            files[path] = read_captions(path)
        except UserError as fault:
            faults.append(str(fault))
    if faults:
        raise UserError("; ".join(faults))
    return files


def read_captions(path: Path) -> CaptionFile:
    """A caption file of any form; a `UserError` for one that is empty, damaged or of no known form."""
    return _find_reader(path, read_text(path))(path)


def _find_reader(path: Path, text: str) -> Reader:
    suffix = path.suffix.lower()
    found = re.search(r"\S.*", text)
    if not found:
        raise UserError(f"{path} is empty")
    first, goes_on = found[0], re.compile(r"\S").search(text, found.end())
    if suffix in (".jsonl", ".ndjson") or (goes_on and re.fullmatch(r"\{\s*\".*\}\s*", first)):
        return read_json_lines
    if suffix == ".json" or re.match(r"\{\s*(\"|$)|\[\s*(\{|$)", first):
        return _find_json_reader(path, text)
    if suffix in (".csv", ".tsv") or find_delimiter(first[:1000]):
        return read_table
    if suffix == ".token" or re.match(r"[^\t]+#\d+\t", first):
        return read_token_file
    return read_plain_lines


def _find_json_reader(path: Path, text: str) -> Reader:
    """Of an object by the keys in it, wherever they stand: a large file is parsed but once."""
    if re.match(r"\s*\[", text):
        return read_coco_results
    for keys, reader in LAYOUTS.items():
        if all(re.search(rf'"{key}"\s*:', text) for key in keys):
            return reader
    parse_json(text, str(path))
    raise UserError(f"{path} is JSON of no known layout; known are COCO's captions and results, Karpathy's, evaluate's")
