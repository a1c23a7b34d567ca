"""Text and JSON files as users have them; what is wrong with one is told in a sentence."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from showattendtell.errors import UserError

Layout = TypeVar("Layout", bound=BaseModel)


def read_text(path: Path) -> str:
    """A text file; a `UserError` where it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file was expected") from None
    except UnicodeDecodeError as fault:
        raise UserError(f"{path} is not UTF-8 text (byte {fault.start}); convert it to UTF-8") from None


def read_list(path: Path) -> list[str]:
    """A split list: an image name a line."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


def read_json(path: Path, layout: type[Layout], whose: str) -> Layout:
    """A JSON file of a published layout; a `UserError` that says where it differs, and `whose` layout it is."""
    return fit(parse_json(read_text(path), str(path)), layout, f"{path} is not in {whose} layout")


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
        return layout.model_validate(content)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{complaint}: {where}: {first['msg'].lower()}") from None
