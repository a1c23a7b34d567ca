"""Read text and JSON files, and find the files of a data set."""

import gc
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from showattendtell.errors import UserError, listed
from showattendtell.types import Dataset, Example


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: it would scan all records repeatedly while they are created, although they
    have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


Layout = TypeVar("Layout")


def read_text(path: Path) -> str:
    """Read a text file; a `UserError` if it is missing, unreadable or not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file was expected") from None
    except UnicodeDecodeError as fault:
        raise UserError(f"{path} is not UTF-8 text (byte {fault.start}); convert it to UTF-8") from None
    except OSError as fault:
        raise UserError(f"{path} cannot be read ({fault.strerror})") from None
    if "\0" in text:
        raise UserError(f"{path} is not UTF-8 text (character {text.index(chr(0))} is NUL); convert it to UTF-8")
    return text


def read_list(path: Path) -> list[str]:
    """Read a split list: one image name per line."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


@without_garbage_collection()
def read_json(path: Path, layout: type[Layout], whose: str) -> Layout:
    """Read a JSON file of a published layout; a `UserError` names the first difference and `whose` layout it is.

    Fields outside the layout are dropped during parsing, because most of a file may be tokens or outlines. A layout
    therefore has no field aliases, and no objects with arbitrary field names.
    """
    text, schema = read_text(path), _validator(layout).json_schema()  # type: ignore[arg-type]
    names = {name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", {})}
    return fit(_parse_named(text, names, str(path)), layout, f"{path} is not in {whose} layout")


def _parse_named(text: str, names: set[str], place: str) -> Any:
    """Parse JSON and keep only fields of these names. `json` accepts escaped lone surrogates, and its error messages
    differ from those of `parse_json`."""
    if not re.search(r"\\u[dD][89a-fA-F]", text):
        with suppress(ValueError, RecursionError):
            return json.loads(text, object_pairs_hook=lambda fields: {k: v for k, v in fields if k in names})
    return parse_json(text, place)


def parse_json(text: str, place: str) -> Any:
    """Parse JSON; a `UserError` names the `place` of invalid JSON."""
    try:
        return from_json(text)
    except ValueError as fault:
        reason = str(fault) if "\n" in text else str(fault).replace("line 1 ", "")
        raise UserError(f"{place} is not JSON ({reason}); export it again") from None


def fit(content: Any, layout: type[Layout], complaint: str) -> Layout:
    """Validate parsed JSON against a layout; a `UserError` with the complaint if it differs."""
    try:
        return _validator(layout).validate_python(content)  # type: ignore[arg-type]  # mypy: a class is Hashable
    except ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        reason = re.sub(r" or (an )?instance of \w+", "", first["msg"]).lower()
        raise UserError(f"{complaint}: {where}: {reason}") from None


@cache
def _validator(layout: Any) -> TypeAdapter[Any]:
    return TypeAdapter(layout)


def open_folder(root: str, holds: str) -> Path:
    """Return the folder of a data set; a `UserError` if it is not a folder."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        fault = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(f"the folder {root} {fault}; set dataset.root to the folder that holds {holds}")
    return folder


def find(root: Path, names: Sequence[str], what: str) -> Path:
    """Return the first of the names that exists; a `UserError` names the missing file if none does."""
    for name in names:
        if (root / name).exists():
            return root / name
    raise UserError(f"{what} was not found in {root}; looked for {', '.join(names)}")


def look_in(folders: Sequence[Path], name: str) -> Path:
    """Return the path of a setting, searched in the folders first; if it exists nowhere, its path in the first."""
    places = [*(folder / name for folder in folders), Path(name).expanduser()]
    return next((place for place in places if os.path.exists(place)), places[0])


def check_images(dataset: Dataset, skip_unreadable: bool, absent: Collection[str] = ()) -> Dataset:
    """Return the data set without images that are not on disk; a `UserError` if a missing image is neither listed as
    absent nor allowed to be skipped, and if all are missing."""
    examples = dataset.examples()
    missing = _not_on_disk(examples)
    if not missing:
        return dataset
    if len(missing) == len(examples):
        raise UserError(f"none of the {len(examples):,} images is on disk, the first is {missing[0].path}; add them")
    unknown = [example for example in missing if example.image not in absent]
    if unknown and not skip_unreadable:
        raise UserError(
            f"{_count(unknown)} in the splits but not on disk, the first is {unknown[0].path}; "
            "add them, or pass over them with dataset.skip_unreadable=true"
        )
    note = f"{_count(missing)} in the splits but not on disk and passed over: {listed([e.image for e in missing], 5)}"
    return dataset.without(example.image for example in missing)._replace(notes=(*dataset.notes, note))


def _not_on_disk(examples: Sequence[Example]) -> list[Example]:
    """Return examples without an image file. Each folder is listed once; a file is checked individually only if the
    list lacks its name, which may be spelled differently there."""
    there = set()
    for folder in {example.path.rpartition("/")[0] for example in examples} - {""}:
        with suppress(OSError), os.scandir(folder) as entries:
            there |= {f"{folder}/{entry.name}" for entry in entries if entry.is_file()}
    return [example for example in examples if example.path not in there and not os.path.isfile(example.path)]


def _count(examples: Sequence[Example]) -> str:
    return "1 image is" if len(examples) == 1 else f"{len(examples):,} images are"
