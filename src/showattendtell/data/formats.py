"""Caption file formats: their detection, and the readers of text and tables."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path, PurePath

from showattendtell.data.json_formats import (
    read_coco_captions,
    read_coco_results,
    read_json_lines,
    read_karpathy,
    read_results,
)
from showattendtell.data.parsing import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    CaptionEntry,
    CaptionFile,
    Sentences,
    collect,
    parse_json,
    read_list,
    read_text,
)
from showattendtell.errors import UserError

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
    pattern = f".[0-9]{match[2]}" if match[1] else match[2]
    sentences: Sentences = {}
    splits: dict[str, list[str]] = {}
    for split, prefixes in ALIGNED_SPLITS.items():
        for prefix in prefixes:
            files = sorted(path.parent.glob(f"{prefix}{pattern}"))
            if files:
                splits[split] = _aligned_images(path.parent, prefix)
                break
        for file in files:
            lines = read_text(file).removesuffix("\n").split("\n")
            if len(lines) != len(splits[split]):
                raise UserError(
                    f"{file} has {len(lines):,} lines, and its list {len(splits[split]):,} images; "
                    "line i describes image i"
                )
            for image, line in zip(splits[split], lines, strict=True):
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
            for caption in captions:
                _refuse_swallowed_rows(caption, PurePath(image).suffix, delimiter, path, number)
            yield origin, image, captions[:1] + list(filter(None, captions[1:])), row

    return collect("CSV", entries(), path)


def _refuse_swallowed_rows(caption: str, suffix: str, delimiter: str, path: Path, number: int) -> None:
    """Raise `UserError` for a caption of several lines with the name of an image in a cell: two lone quotes enclose
    rows by accident."""
    name = rf"\s*\S+{re.escape(suffix)}\s*" if suffix else r"\s*\d+\s*"  # without a suffix it is a number
    for line in caption.split("\n") if "\n" in caption else ():
        cells = line.split(delimiter)
        if len(cells) > 1 and any(re.fullmatch(name, cell) for cell in cells):
            last = number + caption.count("\n")
            raise UserError(
                f"{path}, line {number}: a caption begins with a quote and ends in line {last}, and the lines between "
                "are rows; double the quote and put the caption into quotes, or remove it"
            )


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
    without_text = []
    for base, names in images.items():
        if len(names) > 1:
            raise UserError(f"{' and '.join(names)} in {folder} share the captions of one text; rename one of them")
        if base not in texts:
            without_text += names
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
