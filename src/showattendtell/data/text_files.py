"""Text and JSON files as users have them; what is wrong with one is told in a sentence."""

import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from showattendtell.data.bulk import uncollected
from showattendtell.errors import UserError

Layout = TypeVar("Layout")


def read_text(path: Path) -> str:
    """A text file; a `UserError` where it is missing, cannot be read or is not UTF-8."""
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
    """A split list: an image name a line."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


@uncollected()
def read_json(path: Path, layout: type[Layout], whose: str) -> Layout:
    """A JSON file of a published layout; a `UserError` that says where it differs, and `whose` layout it is.

    What the layout does not name is dropped while the file is parsed, since most of a file may be tokens or outlines:
    so a layout has no fields of other names (aliases), and no objects whose fields have any name.
    """
    text, names = read_text(path), _names(layout)
    return fit(_parse_named(text, names, str(path)), layout, f"{path} is not in {whose} layout")


def _parse_named(text: str, names: set[str], place: str) -> Any:
    """What JSON says in fields of these names. `json` lets escaped halves of characters pass, and does not tell faults
    as `parse_json` does."""
    if not re.search(r"\\u[dD][89a-fA-F]", text):
        with suppress(ValueError, RecursionError):
            return json.loads(text, object_pairs_hook=lambda fields: {k: v for k, v in fields if k in names})
    return parse_json(text, place)


def _names(layout: Any) -> set[str]:
    """The fields of a layout and of all that it holds."""
    schema = _validator(layout).json_schema()
    return {name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", {})}


def parse_json(text: str, place: str) -> Any:
    """What JSON says; a `UserError` names the `place` of what is none."""
    try:
        return from_json(text)
    except ValueError as fault:
        reason = str(fault) if "\n" in text else str(fault).replace("line 1 ", "")
        raise UserError(f"{place} is not JSON ({reason}); export it again") from None


def fit(content: Any, layout: type[Layout], complaint: str) -> Layout:
    """Parsed JSON in a layout; a `UserError` complains where it differs."""
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
