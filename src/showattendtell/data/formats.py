"""Caption file formats and their readers, and checks of text and JSON files."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from glob import glob
from pathlib import Path, PurePath
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from showattendtell.errors import UserError, did_you_mean
from showattendtell.runtime.memory import paused_collection

Layout = TypeVar("Layout")


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: it is missing, unreadable or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, a file was expected") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if "\0" in text:
        raise UserError(f"{path} is not UTF-8 text (character {text.index(chr(0))} is NUL); convert it to UTF-8")
    return text


def read_list(path: Path) -> list[str]:
    """Read a split list: one image name per line."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]


@paused_collection()
def read_json(path: Path, layout: type[Layout], whose: str) -> Layout:
    """Read a JSON file of a published layout.

    Args:
        layout: a class that pydantic validates, without field aliases and objects with arbitrary field names.
        whose: the publisher, for error messages.

    Raises:
        UserError: the file is not JSON, or has another layout; the message names the first difference.
    """
    # Fields that are not in the layout are dropped during parsing: most of a file may be tokens or outlines.
    text, schema = read_text(path), _validator(layout).json_schema()  # type: ignore[arg-type]
    names = {name for part in (schema, *schema.get("$defs", {}).values()) for name in part.get("properties", {})}

    def keep(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        renamed = ((name if name in names or not is_split_field(name) else "split", value) for name, value in fields)
        return {name: value for name, value in renamed if name in names}

    content = None
    if not re.search(r"\\u[dD][89a-fA-F]", text):  # `json` accepts escaped lone surrogates
        with suppress(ValueError, RecursionError):  # its error messages differ from those of `parse_json`
            content = json.loads(text, object_pairs_hook=keep)
    if content is None:
        content = json.loads(json.dumps(parse_json(text, str(path))), object_pairs_hook=keep)
    return check_layout(content, layout, f"{path} is not in {whose} layout")


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
        return _validator(layout).validate_python(content)  # type: ignore[arg-type]  # mypy: a class is Hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        reason = re.sub(r" or (an )?instance of \w+", "", first["msg"]).lower()
        raise UserError(f"{message}: {field}: {reason}") from None


@cache
def _validator(layout: Any) -> TypeAdapter[Any]:
    return TypeAdapter(layout)


Sentences = dict[str, list[str]]
"""Captions by image name, in the file's order."""


class CaptionFile(NamedTuple):
    """Content of a caption file.

    form        name of the format
    captions    by image name; in plain text each line is an image, named `line 1` and so on
    aliases     second names of images (their numbers in COCO), mapped to the names in `captions`
    splits      image names by split; empty if the file has no splits
    references  reference captions by image name, if `captions` are generated
    folders     folder of each image by image name; empty if the file has none
    """

    form: str
    captions: Sentences
    aliases: Mapping[str, str] = {}
    splits: Mapping[str, list[str]] = {}
    references: Mapping[str, list[str]] = {}
    folders: Mapping[str, str] = {}


CaptionEntry = tuple[str, str, list[str], Mapping[str, Any]]
"""An entry of a file: its place, such as a line; name of the image, its captions, and its other fields."""


SPLIT_NAMES = {
    "train": ("train", "training", "trn"),
    "restval": ("restval",),
    "val": ("val", "valid", "validation", "dev", "development"),
    "test": ("test", "testing", "tst"),
}
"""Names of splits, with the spellings that are read; `restval` holds the images of COCO's validation set that Karpathy
added to training."""

SPLIT_OF_SPELLING = {spelling: split for split, spellings in SPLIT_NAMES.items() for spelling in spellings}

SPLIT_FIELDS = {"split", "splits", "splitname", "datasplit", "datasetsplit"}
SPLIT_FIELDS |= {"subset", "set", "partition", "fold", "phase", "istrain", "isval", "istest"}
"""Names of fields and columns with the split of an image, without case, spaces and underscores."""


def is_split_field(name: str) -> bool:
    """Return whether a field or column has the split of an image."""
    return re.sub(r"[\W_]", "", name).lower() in SPLIT_FIELDS


def to_split(name: str, value: Any, origin: str) -> str:
    """Return the split that a field names, empty if the value is. Raise `UserError` if it names none."""
    spelling = "" if value is None else str(value).strip().lower()
    if spelling and spelling not in SPLIT_OF_SPELLING:
        hint = did_you_mean(spelling, SPLIT_NAMES)
        raise UserError(f"{origin}: {name}={value} is not a split{hint}; rename the field if it is none")
    return SPLIT_OF_SPELLING.get(spelling, "")


def _split_fields(entries: Sequence[CaptionEntry]) -> list[str]:
    """Return the fields that have splits: by their name, or because all their values are splits."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for *_, fields in entries:
        for name, value in fields.items():
            values[name].add(str(value).strip().lower())
    return [
        name
        for name, spellings in values.items()
        if is_split_field(name) or (len(spellings) > 1 and spellings <= SPLIT_OF_SPELLING.keys())
    ]


def collect(form: str, rows: Iterable[CaptionEntry], path: Path) -> CaptionFile:
    """Collect the captions and the split of each image from all its entries.

    Raises:
        UserError: a split is unknown; or an image is in two splits, or in none while others are in one.
    """
    entries = list(rows)
    split_fields = _split_fields(entries)
    sentences: Sentences = {}
    split_of: dict[str, str] = {}
    for origin, image, captions, fields in entries:
        sentences.setdefault(image, []).extend(captions)
        named = {to_split(name, fields.get(name), origin) for name in split_fields} or {""}
        if len(named) > 1:
            raise UserError(f"{origin}: {' and '.join(split_fields)} name different splits; keep one of the fields")
        [split] = named
        previous = split_of.setdefault(image, split)
        if previous != split:
            current, earlier = (f"in the split '{name}'" if name else "in no split" for name in (split, previous))
            raise UserError(f"{origin}: image {image} is {current}, and {earlier} before; give it one split")
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for image, split in split_of.items():
        splits[split].append(image)
    if "" in splits and len(splits) > 1:
        raise UserError(f"{path}: image {splits[''][0]} is in no split, others are; give it one")
    return CaptionFile(form, sentences, splits={} if "" in splits else dict(splits))


PLAIN = "plain lines"


def read_plain_lines(path: Path) -> CaptionFile:
    """Read one caption per line. Line i belongs to image i, even if it is empty."""
    lines = read_text(path).removesuffix("\n").split("\n")
    if "\t" in lines[0]:
        raise UserError(
            f"{path} is in no known format: its first line has tabs, but it is not a header with the columns image "
            "and caption and does not begin with 'name.jpg#0'"
        )
    return CaptionFile(PLAIN, {f"line {i}": [line] for i, line in enumerate(lines, start=1)})


_FLICKR8K_CN = re.compile(r"(\S+)#zh\w*#(\d+)[ \t]")


def read_token_file(path: Path) -> CaptionFile:
    """Read Flickr's token file, with lines `name.jpg#0<TAB>caption`, or Flickr8k-CN's, `name#zhc#0 caption`."""
    sentences: Sentences = {}
    for i, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        key, tab, sentence = _FLICKR8K_CN.sub(r"\1#\2\t", line, count=1).partition("\t")
        image, separator, index = key.rpartition("#")
        if not (tab and separator and index.isdigit() and image and sentence.strip()) or "\t" in sentence:
            raise UserError(f"{path}, line {i}: expected 'name.jpg#0<TAB>caption', got '{line[:60]}'")
        sentences.setdefault(image, []).append(sentence)
    return CaptionFile("Flickr's token file", sentences)


LINE_ALIGNED = re.compile(r"train(\.\d)?(\.[a-z]{2})")
"""Names of Multi30k's training captions: `train.de`, or `train.1.de` of several."""

ALIGNED_SPLITS = {"train": ["train"], "val": ["val"], "test": ["test_2016_flickr", "test_2016", "test"]}
"""Names of the files of each split in Multi30k, the first that exists."""


def read_line_aligned(path: Path) -> CaptionFile:
    """Read Multi30k (Elliott et al. 2016): line i of `train.de` describes image i of a list of image names. With
    several captions the files are `train.1.de`, `train.2.de` and so on; `val` and `test_2016_flickr` likewise.

    Args:
        path: the training captions of a language, or the first of several such files.

    Raises:
        UserError: a list is missing, or has another number of lines than the captions.
    """
    match = LINE_ALIGNED.fullmatch(path.name)
    assert match
    number, language = ("[0-9]" if match[1] else "", match[2])
    sentences: Sentences = {}
    splits: dict[str, list[str]] = {}
    for split, prefixes in ALIGNED_SPLITS.items():
        pattern = f".{number}{language}" if number else language
        candidates = ((prefix, sorted(path.parent.glob(f"{prefix}{pattern}"))) for prefix in prefixes)
        prefix, files = next(((prefix, files) for prefix, files in candidates if files), ("", []))
        if not files:
            continue
        images = splits[split] = _aligned_images(path.parent, prefix)
        for file in files:
            lines = read_text(file).removesuffix("\n").split("\n")
            if len(lines) != len(images):
                raise UserError(
                    f"{file} has {len(lines):,} lines, and its list {len(images):,} images; line i describes image i"
                )
            for image, line in zip(images, lines, strict=True):
                sentences.setdefault(image, []).extend([line] if line.strip() else [])
    return CaptionFile("Multi30k's lines", sentences, splits=splits)


def _aligned_images(folder: Path, prefix: str) -> list[str]:
    """Return the image names of a split of Multi30k, from a list next to the captions or in `image_splits`."""
    names = (f"{prefix}_images.txt", f"{prefix}.txt")
    candidates = [place / name for place in (folder, folder.parent / "image_splits") for name in names]
    list_file = next((place for place in candidates if place.is_file()), None)
    if list_file is None:
        raise UserError(f"{folder} has no list {' or '.join(names)} of the images of each line; copy Multi30k's there")
    return [image.partition("#")[0] for image in read_list(list_file)]


IMAGE_FIELDS = ("image", "file", "file_name", "filename", "image_name", "image_id")
CAPTION_FIELDS = ("caption", "text", "comment")
"""Names of the column or field of images and of captions, in any case; the first that exists counts."""


def parse_rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table with the number of their first line; blank lines are skipped.

    A quote is a character, unless a whole cell is in quotes, with each quote inside of it doubled (RFC 4180).

    Raises:
        ValueError: a cell begins with a quote and is not in quotes; in a table with tabs such a quote is a character.
    """
    quoted = rf'[ ]*"((?:[^"]+|"")*+)"[ ]*(?={re.escape(delimiter)}|\r?\n|\Z)'
    pattern = re.compile(rf"{quoted}|([^{re.escape(delimiter)}\n]*)")
    position, line, first, cells = 0, 1, 1, list[str]()
    while position <= len(text):
        cell = pattern.match(text, position)
        assert cell
        if delimiter != "\t" and cell[1] is None and cell[2].lstrip().startswith('"'):
            raise ValueError(f"line {line}: a quote does not close; put the cell into double quotes")
        cells.append(cell[2].strip() if cell[1] is None else cell[1].replace('""', '"'))
        line += cell[0].count("\n")
        position = cell.end() + 1
        if text[cell.end() : position] == delimiter:
            continue
        if text[cell.end() : position] == "\r":
            position += 1
        if cells != [""]:
            yield first, cells
        line, cells = line + 1, []
        first = line


def find_delimiter(header: str) -> str | None:
    """Return the delimiter of a table, given its first line; None if it has no columns of images and captions."""
    for delimiter in ",\t;|":
        with suppress(ValueError):
            names = {name.lower() for _, columns in parse_rows(header, delimiter) for name in columns}
            if names & set(IMAGE_FIELDS) and names & set(CAPTION_FIELDS):
                return delimiter
    return None


def read_table(path: Path) -> CaptionFile:
    """Read a table with a column of images, one of captions, and optionally one of splits, one caption per row.

    The delimiter is a comma, a tab, a semicolon or a vertical line.
    """
    text = read_text(path)
    header = text.partition("\n")[0]
    delimiter = find_delimiter(header)
    if not delimiter:
        raise UserError(f"{path}, line 1: expected a header with the columns image and caption, got '{header[:60]}'")
    try:
        (_, columns), *rows = parse_rows(text, delimiter)
    except ValueError as error:
        raise UserError(f"{path}, {error}") from None
    names = [name.lower() for name in columns]
    if len(set(names)) < len(names):
        raise UserError(f"{path}, line 1: two columns have one name; rename one")
    image_column = next(name for name in IMAGE_FIELDS if name in names)
    caption_column = next(name for name in CAPTION_FIELDS if name in names)
    caption_columns = [name for name in names if re.fullmatch(rf"{caption_column}[ _-]?\d*", name)]
    lines = text.split("\n")

    def entries() -> Iterator[CaptionEntry]:
        for number, cells in rows:
            origin = f"{path}, line {number}"
            if len(cells) != len(names):
                raise UserError(
                    f"{origin}: {len(cells)} cells in {len(names)} columns; put a caption that has a comma or a quote "
                    "into double quotes"
                )
            row = dict(zip(names, cells, strict=True))
            image, captions = row.pop(image_column), [row.pop(name) for name in caption_columns]
            if not image:
                raise UserError(f"{origin}: the column {image_column} is empty")
            breaks = sum(caption.count("\n") for caption in captions)
            if breaks:
                _refuse_swallowed_rows(lines, number, breaks, names.index(image_column), delimiter, path)
            yield origin, image, captions[:1] + list(filter(None, captions[1:])), row

    return collect("CSV", entries(), path)


def _refuse_swallowed_rows(
    lines: Sequence[str], number: int, breaks: int, image_column: int, delimiter: str, path: Path
) -> None:
    """Raise `UserError` if each line of a cell would be a row of its own: two lone quotes enclose them by accident."""
    rows = [line.split(delimiter) for line in lines[number - 1 : number + breaks]]
    suffixes = {PurePath(row[image_column].strip()).suffix for row in rows if len(row) == len(rows[0])}
    if len({len(row) for row in rows}) == 1 and len(suffixes) == 1 and suffixes != {""}:
        raise UserError(
            f"{path}, line {number}: a caption begins with a quote and ends in line {number + breaks}, and the lines "
            "between are rows; double the quote and put the caption into quotes, or remove it"
        )


ImageName = Annotated[str, Field(coerce_numbers_to_str=True, min_length=1)]
"""A name, or a number as in COCO."""


class CaptionRecord(BaseModel):
    """An image with one or several captions, in JSON lines or COCO's results."""

    model_config = ConfigDict(extra="allow")

    image: ImageName = Field(validation_alias=AliasChoices(*IMAGE_FIELDS))
    captions: Annotated[list[str], BeforeValidator(lambda said: [said] if isinstance(said, str) else said)] = Field(
        validation_alias=AliasChoices(*CAPTION_FIELDS, "captions")
    )

    def entry(self, origin: str) -> CaptionEntry:
        return origin, self.image, self.captions, self.model_extra or {}


def read_json_lines(path: Path) -> CaptionFile:
    """Read lines such as `{"image": "a.jpg", "caption": "a dog"}`; or `captions` with a list, and `split`."""
    lines = ((f"{path}, line {n}", line) for n, line in enumerate(read_text(path).split("\n"), start=1) if line.strip())
    entries = (check_layout(parse_json(line, origin), CaptionRecord, origin).entry(origin) for origin, line in lines)
    return collect("JSON lines", entries, path)


def read_coco_results(path: Path) -> CaptionFile:
    """Read `[{"image_id": 1, "caption": "a dog"}, ...]`."""
    content = parse_json(read_text(path), str(path))
    entries = check_layout(content, list[CaptionRecord], f"{path} is not in COCO's results layout")
    return collect("COCO results", (record.entry(f"{path}, {i}") for i, record in enumerate(entries)), path)


@dataclass(slots=True)
class CocoImage:
    id: ImageName
    file_name: str | None = None
    split: Any = None


@dataclass(slots=True)
class CocoCaption:
    image_id: ImageName
    caption: str
    split: Any = None


@dataclass(slots=True)
class CocoCaptions:
    """Fields read from `captions_train2017.json` and similar files."""

    images: list[CocoImage]
    annotations: list[CocoCaption]
    split: Any = None


def read_coco_captions(path: Path) -> CaptionFile:
    """Read COCO's reference captions. Images have the names of their files, and their numbers as aliases."""
    content = read_json(path, CocoCaptions, "COCO's")
    if content.split is not None:
        raise UserError(f"{path} has splits outside of its images; write the split of each image into its entry")
    names = {image.id: image.file_name or image.id for image in content.images}
    _refuse_duplicates((image.id for image in content.images), path)
    _refuse_duplicates(names.values(), path)
    unknown = next(
        (annotation.image_id for annotation in content.annotations if annotation.image_id not in names), None
    )
    if unknown is not None:
        raise UserError(f"{path} has a caption for image {unknown}, which it does not list; add it to its images")
    records = [
        *((image.id, "", image.split) for image in content.images),
        *((annotation.image_id, annotation.caption, annotation.split) for annotation in content.annotations),
    ]
    split_of = {number: split for number, _, split in records if split is not None}

    def entries() -> Iterator[CaptionEntry]:
        for number, caption, split in records:
            fields = {"split": split_of.get(number) if split is None else split}
            yield f"{path}, image {number}", names[number], [caption] if caption else [], fields

    return collect("COCO captions", entries(), path)._replace(aliases=_aliases(names))


@dataclass(slots=True)
class KarpathySentence:
    raw: str


@dataclass(slots=True)
class KarpathyImage:
    filename: str
    split: Any
    sentences: list[KarpathySentence]
    filepath: str = ""
    cocoid: int | None = None
    imgid: int | None = None


@dataclass(slots=True)
class KarpathyFile:
    """Fields read from Karpathy's `dataset_flickr8k.json` and similar files."""

    images: list[KarpathyImage]


def read_karpathy(path: Path) -> CaptionFile:
    """Read Karpathy's JSON, with its splits and folders. Aliases are the numbers in COCO, or else in the file."""
    images = read_json(path, KarpathyFile, "Karpathy's").images
    _refuse_duplicates((image.filename for image in images), path)
    splits: dict[str, list[str]] = {}
    for image in images:
        split = to_split("split", image.split, f"{path}, image {image.filename}")
        splits.setdefault(split, []).append(image.filename)
    ids = ((image.imgid if image.cocoid is None else image.cocoid, image.filename) for image in images)
    numbers = {str(number): name for number, name in ids if number is not None}
    sentences = {image.filename: [sentence.raw for sentence in image.sentences] for image in images}
    folders = {image.filename: image.filepath for image in images if image.filepath}
    return CaptionFile("Karpathy's JSON", sentences, _aliases(numbers), splits, folders=folders)


class Results(BaseModel):
    """Fields read from the results of `evaluate`."""

    captions: dict[str, str]
    references: dict[str, list[str]]


def read_results(path: Path) -> CaptionFile:
    """Read a results file of `evaluate`: generated captions and reference captions."""
    results = check_layout(parse_json(read_text(path), str(path)), Results, f"{path} is not in evaluate's layout")
    captions = {image: [caption] for image, caption in results.captions.items()}
    return CaptionFile("evaluate's results", captions, references=results.references)


def _refuse_duplicates(names: Iterable[str], path: Path) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{path}: image {twice} is listed more than once; keep one of its entries")


def _aliases(names: Mapping[str, str]) -> dict[str, str]:
    """Return the aliases that are not also names of images."""
    image_names = set(names.values())
    return {alias: name for alias, name in names.items() if alias not in image_names}


SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def read_caption_folder(folder: Path, lists: Path | None = None, skip_missing: bool = False) -> CaptionFile:
    """Read a folder tree of images, each with a `.txt` file of the same name, one caption per line.

    Args:
        lists: a folder of other texts, which may be inside this one.
        skip_missing: images without texts have no captions, and texts without images are ignored.

    Raises:
        UserError: an image has no text, a text has no image, or two images have the same name.
    """
    images: defaultdict[PurePath, list[str]] = defaultdict(list)
    texts: set[PurePath] = set()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        suffix = relative.suffix.lower()
        if suffix == ".txt" and path.parent != lists:
            texts.add(relative.with_suffix(""))
        elif suffix in SUFFIXES and not relative.name.startswith("."):
            try:
                relative.as_posix().encode()
            except UnicodeEncodeError:
                raise UserError(f"the name of the image {relative.as_posix()!r} is not UTF-8; rename it") from None
            images[relative.with_suffix("")].append(relative.as_posix())
    _check_pairs(folder, images, texts if not skip_missing else set(images))
    lines = {
        image: read_text(folder / f"{base}.txt").split("\n") if base in texts else []
        for base, [image] in images.items()
    }
    return CaptionFile("texts", {image: [line for line in said if line.strip()] for image, said in lines.items()})


def _check_pairs(folder: Path, images: dict[PurePath, list[str]], texts: set[PurePath]) -> None:
    if not images:
        raise UserError(f"{folder} holds no images; set dataset.images to the folder of the images")
    duplicates = next((names for names in images.values() if len(names) > 1), None)
    if duplicates:
        raise UserError(f"{' and '.join(duplicates)} in {folder} share the captions of one text; rename one of them")
    without_text = [names[0] for base, names in images.items() if base not in texts]
    if without_text:
        raise UserError(
            f"{len(without_text):,} of {len(images):,} images in {folder} have no text next to them, first "
            f"{without_text[0]}, which needs a .txt file of its name with one caption per line; give a caption file as "
            "dataset.captions=..., or skip them with dataset.skip_missing=true"
        )
    without_image = sorted(texts - images.keys())
    if without_image:
        raise UserError(
            f"texts without an image next to them in {folder}: {len(without_image):,}, the first is "
            f"{without_image[0]}.txt; add the images, or skip them with dataset.skip_missing=true"
        )


def find_caption_files(patterns: str | Sequence[str]) -> list[Path]:
    """Return the files that paths and patterns such as `ref*` match, each once.

    Raises:
        UserError: a pattern matches no file.
    """
    files: list[Path] = []
    for name in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(name).expanduser()
        is_file = path.exists() or not set(name) & set("*?[")
        matches = [path] if is_file else sorted(map(Path, glob(str(path), recursive=True)))
        if not matches:
            raise UserError(f"no file matches {name}")
        files += matches
    return list(dict.fromkeys(files))


def read_all(paths: Iterable[Path]) -> dict[Path, CaptionFile]:
    """Read each file once. Raise one `UserError` with the errors of all files."""
    files, errors = {}, []
    for path in dict.fromkeys(paths):
        try:
            files[path] = read_captions(path)
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; ".join(errors))
    return files


def read_captions(path: Path) -> CaptionFile:
    """Read a caption file of any supported format, which its suffix or its first line decides.

    Raises:
        UserError: the file is empty, damaged or of an unknown format.
    """
    text, suffix = read_text(path), path.suffix.lower()
    first_text_line = re.search(r"\S.*", text)
    if not first_text_line:
        raise UserError(f"{path} is empty")
    first, follows = first_text_line[0], re.compile(r"\S").search(text, first_text_line.end())
    if suffix in (".jsonl", ".ndjson") or (follows and re.fullmatch(r"\{\s*\".*\}\s*", first)):
        return read_json_lines(path)
    if suffix == ".json" or re.match(r"\{\s*(\"|$)|\[\s*(\{|$)", first):
        return _find_json_reader(path, text)(path)
    if suffix in (".csv", ".tsv") or find_delimiter(first[:1000]):
        return read_table(path)
    if LINE_ALIGNED.fullmatch(path.name):
        return read_line_aligned(path)
    if suffix == ".token" or re.match(r"[^\t]+#\d+\t", first) or _FLICKR8K_CN.match(first):
        return read_token_file(path)
    return read_plain_lines(path)


def _find_json_reader(path: Path, text: str) -> Callable[[Path], CaptionFile]:
    """Return the reader of a JSON file, chosen by its keys without parsing it, since a large file takes long."""
    if re.match(r"\s*\[", text):
        return read_coco_results

    def has(*keys: str) -> bool:
        return all(re.search(rf'"{key}"\s*:', text) for key in keys)

    if has("captions", "references"):
        return read_results
    if has("images"):
        return read_coco_captions if has("annotations") else read_karpathy
    parse_json(text, str(path))
    raise UserError(f"{path} is JSON of no known layout; known are COCO's captions and results, Karpathy's, evaluate's")
