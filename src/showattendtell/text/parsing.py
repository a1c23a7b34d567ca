"""Read text and JSON files, and collect the captions and splits of the records of a caption file."""

import re
from ast import literal_eval
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from showattendtell.errors import UserError
from showattendtell.runtime.files import read_regular
from showattendtell.settings import adapter_of

Layout = TypeVar("Layout")


CONVERT = "in Excel: CSV UTF-8, in Python: to_csv(index=False) of the pandas table"
"""How to convert tables that are no text, such as those of Excel and pickles."""


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: it is missing, unreadable or not UTF-8.
    """
    try:
        content = read_regular(path)
        text = content.decode("utf-16" if content[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it ({CONVERT})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if "\0" in text:
        raise UserError(f"{path} is not UTF-8 text (character {text.index(chr(0))} is NUL); convert it ({CONVERT})")
    return text


def read_list(path: Path) -> list[str]:
    """Read a list of image names or captions: one per line, blank ones left out."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


def parse_json(text: str, origin: str) -> Any:
    """Parse JSON. Raise `UserError` if it is invalid; `origin` names its file and line."""
    try:
        return from_json(text)
    except ValueError as error:
        reason = str(error) if "\n" in text else str(error).replace("line 1 ", "")
        raise UserError(f"{origin} is not JSON ({reason}); export it again") from None


def check_layout(content: Any, layout: type[Layout], message: str) -> Layout:
    """Validate parsed JSON with pydantic. Raise `UserError` if it differs; the text starts with `message`."""
    try:
        return adapter_of(layout).validate_python(content)  # type: ignore[arg-type]  # mypy: a class is Hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        reason = re.sub(r" or (an )?instance of \w+", "", first["msg"]).lower()
        raise UserError(f"{message}: {field}: {reason}") from None


Sentences = dict[str, list[str]]
"""Captions by image name, in the file's order."""


class CaptionFile(NamedTuple):
    """Content of a caption file.

    form        name of the format
    captions    by image name; in plain text each line is an image, named `line 1` and so on
    aliases     second names of images (their numbers in COCO), mapped to the names in `captions`
    split_of    split of each image by image name, in the order of training; empty if the file has no splits
    references  reference captions by image name, if `captions` are generated
    folders     folder of each image by image name; empty if the file has none
    notes       sentences on what was chosen or left out
    """

    form: str
    captions: Sentences
    aliases: Mapping[str, str] = {}
    split_of: Mapping[str, str] = {}
    references: Mapping[str, list[str]] = {}
    folders: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def renamed(self, rename: Callable[[str], str]) -> "CaptionFile":
        """Return the file with other names of its images; those that get the same name become one."""
        captions: Sentences = {}
        for image, sentences in self.captions.items():
            captions.setdefault(rename(image), []).extend(sentences)
        split_of: dict[str, str] = {}
        for image, split in self.split_of.items():
            add_splits(split_of, [rename(image)], split)
        return self._replace(captions=captions, split_of=split_of)


def add_splits(split_of: dict[str, str], images: Iterable[str], split: str) -> None:
    """Add images of a split to `split_of`. Raise `UserError` for an image that it has."""
    for image in images:
        if image in split_of:
            places = f"{split_of[image]}, {split}"
            raise UserError(f"image {image} is listed more than once ({places}); keep one of its entries")
        split_of[image] = split


COLUMNS = {
    "image": "image file filename imagename imagefile imagefilename filepath imagepath path photo picture img imgname "
    "imgpath imageid imgid name id",
    "caption": "caption text comment sentence description alttext prompt raw generated generatedcaption prediction "
    "predcaption predictedcaption hypothesis",
}
"""Names of the column or field of images and of captions, as `plain_name` gives them; the first that exists counts."""


def plain_name(field: str) -> str:
    """Return the name of a field without case, spaces and marks: `imagename` for `Image name` and `image_name`."""
    return re.sub(r"[\W_]", "", field).lower()


@lru_cache(maxsize=8)
def find_columns(fields: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """Return the field of the image, and those of its captions, such as `caption` and `caption_2`; None without any."""
    plain = {plain_name(field): field for field in fields}
    image = next((plain[name] for name in COLUMNS["image"].split() if name in plain), None)
    for name in COLUMNS["caption"].split():
        captions = [field for found, field in plain.items() if re.fullmatch(rf"{name}(s|str)?\d*", found)]
        if image and captions:
            return image, captions
    return None


def refuse_columns(fields: Iterable[str], origin: str) -> UserError:
    """Return the error for a table or record without a known field of images or of captions."""
    names = ", ".join(fields)
    return UserError(
        f"{origin} has the columns {names[:200]}; name that of the images image and that of the captions caption"
    )


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _as_list(said: Any) -> Any:
    """Return captions as a list: one or several, each a text, a list in a text (`["A dog", "It barks"]`, as JSON or as
    pandas writes it), or an object such as `{"caption": ...}`."""
    if isinstance(said, str) and said.startswith(("['", '["')) and said.endswith(("']", '"]')):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):  # it is a caption then
            said = literal_eval(said)
    if isinstance(said, list):
        return [caption for one in said for caption in _as_list(one)]
    if isinstance(said, dict) and not any(map(is_split_field, said)) and (columns := find_columns(("image", *said))):
        return _as_list(said[columns[1][0]])
    return [] if said is None else [said]


ImageName = Annotated[
    str, StringConstraints(strip_whitespace=True), Field(coerce_numbers_to_str=True), BeforeValidator(_whole)
]
"""A name, or a number as in COCO, which pandas may write as 42.0."""


class _Said(TypedDict):
    image: ImageName
    captions: Annotated[list[str], BeforeValidator(_as_list)]


class Entry(NamedTuple):
    """An image and captions in one place of a file, such as a line, with its other fields, such as a split."""

    origin: str
    image: str
    captions: list[str]
    fields: Mapping[str, Any]


def read_record(record: Any, origin: str) -> Entry:
    """Read an object with an image, one or several captions, and other fields."""
    if not isinstance(record, dict):
        raise UserError(f"{origin}: input should be an object with an image and captions")
    fields = dict(record)
    columns = find_columns(tuple(fields))
    if columns is None:
        raise refuse_columns(fields, origin)
    captions = [fields.pop(name) for name in columns[1]]
    said = check_layout({"image": fields.pop(columns[0]), "captions": captions}, _Said, origin)
    image, captions = said["image"], said["captions"]
    if "#" in image:
        image = re.sub(r"(\.\w+)#\d+$", r"\1", image)  # without the number of a caption
    if not image:
        raise UserError(f"{origin}: the column {columns[0]} is empty")
    # an empty caption stays where it is the only one: a model may have written it
    return Entry(origin, image, list(filter(None, captions)) or captions[:1], fields)


SPLIT_NAMES = {
    "train": "train training trn",
    "restval": "restval",
    "val": "val valid validation dev development",
    "test": "test testing tst",
}
"""Names of splits, with the spellings that are read; `restval` holds the images of COCO's validation set that Karpathy
added to training."""

SPLIT_OF_SPELLING = {spelling: split for split, spellings in SPLIT_NAMES.items() for spelling in spellings.split()}

FILLERS = {"image", "images", "set", "split", "list", "names", "ids", "data", "flickr", "k"}
"""Words beside a split in the name of a folder or list, as in `train_images` and `Flickr_8k.trainImages`."""


def words_of(name: str) -> list[str]:
    """Return the words of a name such as `trainImages`, `is_train` or `train2014`, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]


def split_of_name(name: str) -> str:
    """Return the split that a folder or list is named after; empty if there is none."""
    words = [word for word in words_of(name) if word not in FILLERS]
    return SPLIT_OF_SPELLING.get(words[0], "") if len(words) == 1 else ""


@cache
def is_split_field(name: str) -> bool:
    """Return whether a field or column has the split of an image, by its name."""
    words = words_of(name)
    joined = "".join(words)
    if joined in ("set", "fold", "phase", "istrain", "isval", "istest") or re.search("split|subset|partition", joined):
        return True
    return not SPLIT_OF_SPELLING.keys().isdisjoint(words)


def _to_split(value: Any) -> str | None:
    """Return the split that a value names: empty for an empty value, None for another one."""
    spelling = "" if value is None else plain_name(str(value))
    return SPLIT_OF_SPELLING.get(spelling) if spelling else ""


def _split_fields(entries: Sequence[Entry]) -> set[str]:
    """Return the fields that have splits: by their name, or because their values name several."""
    splits = defaultdict[str, set[str | None]](set)
    for entry in entries:
        for name, value in entry.fields.items():
            splits[name].add(_to_split(value))
    return {name for name, found in splits.items() if is_split_field(name) or len(found - {"", None}) > 1}


def collect(form: str, found: Iterable[Entry], path: Path) -> CaptionFile:
    """Collect the captions and the split of each image from all its entries.

    Raises:
        UserError: a split is unknown; or an image is in two splits, or in none while others are in one.
    """
    entries = list(found)
    split_fields = _split_fields(entries)
    captions: Sentences = {}
    split_of: dict[str, str] = {}
    for origin, image, sentences, fields in entries:
        captions.setdefault(image, []).extend(sentences)
        for name in filter(split_fields.__contains__, fields):
            split, given = _to_split(fields[name]), f"{origin}: {name}={fields[name]}"
            if split is None:
                raise UserError(f"{given} is not a split, as train, val or test; rename the field if it is none")
            if split != split_of.setdefault(image, split):
                raise UserError(f"{given}, but the split of image {image} is '{split_of[image]}' elsewhere; keep one")
    if not any(split_of.values()):
        return CaptionFile(form, captions)
    for image in captions:
        if not split_of.get(image):
            raise UserError(f"{path}: image {image} is in no split, others are; give it one")
    return CaptionFile(form, captions, split_of={image: split_of[image] for image in captions})
