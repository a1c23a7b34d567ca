"""Data sets of your own photographs, as people have them: caption files of other names and places, one for each split,
or a text next to each photograph."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field

from showattendtell.errors import UserError, listed, printable
from showattendtell.images.names import Names, dataset_folder, files_below, inside, is_photograph, photographs
from showattendtell.readers.assembly import assemble, check_images, find_image_folder, look_in, with_lists, with_splits
from showattendtell.readers.formats import PLAIN, TOKEN, find_delimiter, read_captions
from showattendtell.runtime.files import open_regular, read_regular
from showattendtell.runtime.process import paused_collection
from showattendtell.settings import Fraction, Place, PositiveInt, Source
from showattendtell.text.parsing import (
    COLUMNS,
    CONVERT,
    SPLIT_OF_SPELLING,
    CaptionFile,
    Sentences,
    add_splits,
    is_split_field,
    read_list,
    words_of,
)
from showattendtell.types import Dataset

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]

TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".token", ".txt")
SIDECARS = (".txt", ".caption")
"""Suffixes of the text next to a photograph; the second is kohya's."""

PREFERRED = (r"captions?", r"metadata", r".*caption.*", r"results.*", r".*annot.*", r"dataset.*", r".*")
"""Stems of caption files, the likeliest first."""

DEEPEST = 3
"""Levels of folders that are searched for caption files."""

START = 2**16
"""Bytes at both ends of a file that are searched for captions."""

_HAS_CAPTIONS = re.compile(rf'"({COLUMNS["caption"].replace(" ", "|")})(s|_?str)?_?\d*"\s*:', re.IGNORECASE)
_BY_IMAGE = re.compile(r'\s*\{\s*"[^"]+\.(jpe?g|png|webp)"\s*:', re.IGNORECASE)


def caption_files(root: Path) -> dict[str, Path]:
    """Return the caption files of a data set: one under the key "", or one for each split; none if nothing is found.

    A file is preferred by its name, then in the uppermost folder.

    Raises:
        UserError: several files are equally likely.
    """
    ranked = []
    files = list(files_below(root))
    beside = {os.path.splitext(file)[0] for file in files if is_photograph(file)}
    for file in files:
        base, suffix = os.path.splitext(file)
        if suffix.lower() not in TEXTS or base in beside:
            continue
        path = Path(file)
        depth = len(path.relative_to(root).parts)
        rank = next(i for i, name in enumerate(PREFERRED) if re.fullmatch(name, path.stem.lower()))
        if depth <= DEEPEST and ((rank, depth) == (0, 1) or _holds_captions(path)):
            ranked.append((rank, depth, path))
    ranked.sort()
    likeliest = [path for rank, depth, path in ranked if (rank, depth) == ranked[0][:2]]
    if not likeliest:
        return {}
    if len(likeliest) == 1:
        return {"": likeliest[0]}
    by_split = {_split_of(path, root): path for path in likeliest}
    if "" in by_split or len(by_split) < len(likeliest):
        names = [str(path.relative_to(root)) for path in likeliest]
        raise UserError(f"{root} has {' and '.join(names)}; choose one with dataset.captions=NAME")
    return by_split


def _split_of(path: Path, root: Path) -> str:
    """Return the split that the name of a file or of its folder says: `annotations/train.json`, `val/metadata.csv`."""
    words = words_of(path.relative_to(root).with_suffix("").as_posix())
    splits = [SPLIT_OF_SPELLING[word] for word in words if word in SPLIT_OF_SPELLING]
    return splits[-1] if splits else ""


def _holds_captions(path: Path) -> bool:
    """Return whether a file has captions with the names of images, by its first and last bytes."""
    with open_regular(path) as file:
        start = file.read(START)
        file.seek(max(os.fstat(file.fileno()).st_size - START, 0))
        texts = [part.decode("utf-8-sig", errors="replace") for part in (start, file.read())]
    if "json" in path.suffix.lower():
        return bool(_BY_IMAGE.match(texts[0])) or any(map(_HAS_CAPTIONS.search, texts))
    first = texts[0].lstrip().partition("\n")[0]
    return bool(find_delimiter(first[:1000]) or TOKEN.match(first))


def read_references(path: Path) -> CaptionFile:
    """Read a caption file. Raise `UserError` if it holds generated captions."""
    file = read_captions(path)
    if file.references:
        raise UserError(f"{path} holds a model's captions; give a file of reference captions")
    return file


def read_found(root: Path, files: Mapping[str, Path]) -> CaptionFile | None:
    """Read the caption files that `caption_files` has found, and join them: a file for each split, unless they have
    splits of their own. Return None if there are none.

    Image names are relative to the folder of their caption file, where there is such a photograph.
    """
    if not files:
        return None
    captions, split_of, folders, notes = Sentences(), dict[str, str](), dict[str, str](), list[str]()
    names = [str(path.relative_to(root)) for path in files.values()]
    if not names[0].startswith("captions."):
        notes.append(f"captions: {', '.join(names)}")
    for split, path in files.items():
        file = _relative(read_references(path), path.parent, root)
        own_splits = file.split_of or (dict.fromkeys(file.captions, split) if split else {})
        for image, own_split in own_splits.items():
            add_splits(split_of, [image], own_split)
        for image, sentences in file.captions.items():
            captions.setdefault(image, []).extend(sentences)
        folders |= file.folders
        notes += file.notes
    return file._replace(captions=captions, split_of=split_of, folders=folders, notes=tuple(notes))


def _relative(file: CaptionFile, folder: Path, root: Path) -> CaptionFile:
    first = next(iter(file.captions), "")
    if folder == root or not (folder / first).is_file() or (root / first).is_file():
        return file
    return file.renamed(lambda image: f"{folder.relative_to(root).as_posix()}/{image}")


def read_sidecars(folder: Path, root: Path) -> CaptionFile:
    """Read a folder tree of photographs, each with a text of the same name, one caption per line: `.txt` or `.caption`
    next to it, or in a folder of its own under `root`.

    Raises:
        UserError: there are no photographs or texts, or two photographs have one text.
    """
    bases = {os.path.relpath(path, folder): os.path.splitext(path)[0] for path in photographs(folder)}
    if not bases:
        raise UserError(f"{folder} holds no images; unpack them, or set dataset.images to the folder of the images")
    names = {base: name for name, base in bases.items()}
    for name, base in bases.items():
        if re.search(r"[\ud800-\udfff]", name):
            raise UserError(f"the name of the image {name!r} is not UTF-8; rename it")
        if names[base] != name:
            raise UserError(f"{name} and {names[base]} in {folder} share the captions of one text; rename one of them")
    files = [path for place in (root, folder) for path in files_below(place) if path.lower().endswith(SIDECARS)]
    texts = {os.path.splitext(path)[0]: path for path in files}
    if texts.keys().isdisjoint(bases.values()):
        known = Names(bases.values())
        texts = {found[0]: text for base, text in texts.items() if (found := known.find(base))}
    captions = {name: read_list(Path(texts[base])) if base in texts else [] for name, base in bases.items()}
    if not any(captions.values()):
        others = [path for path in files_below(root) if not is_photograph(path) and not path.lower().endswith(TEXTS)]
        hint = f"; if they are in {listed(others)}, save them as captions.csv ({CONVERT})" if others else ""
        raise UserError(
            f"no captions were found in {root}: neither a table or JSON file with the columns image and caption, nor "
            f"texts next to the images; give the file as dataset.captions=...{hint}"
        )
    return CaptionFile("texts", captions)


@paused_collection()
def read_custom(
    root: Place,
    captions: Source | None = None,
    images: Source | None = None,
    splits: Source | None = None,
    val: Fraction = 0.1,
    test: Fraction = 0.1,
    name: Name | None = None,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    skip_missing: bool = False,
) -> Dataset:
    """Read images and captions of your own.

    Args:
        root: folder of the data set.
        captions: CSV, JSON lines, COCO's or Karpathy's JSON, Flickr's token file, searched in `root`
            first; by default `captions.csv` there or the likeliest caption file in the folder, one for each split, or
            else a text file next to each image, one caption per line.
        images: folder of the images, searched in `root` first; by default `images` there, or else `root`. Images that
            are not in it are searched in `root` by their names.
        splits: folder with the lists train.txt, val.txt and test.txt, one image name per line, searched in `root`
            first; by default the splits of the caption file.
        val, test: fractions of the images for validation and test, if no splits are given; a hash of an image's name
            decides, so that no image changes its split when others are added. If the splits have no `val`, it gets this
            fraction of the training images.
        name: data set name of grids and results; by default built from the folder's name and path.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        skip_missing: skip images without captions, and captions without images.
    """
    folder = dataset_folder(root, "your images")
    image_folder = find_image_folder(folder, images, ["images"])
    # different folders of one name do not share stored grids
    path = folder.resolve()
    own_name = name or f"{printable(path.name)}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"
    on_disk = [os.path.relpath(path, image_folder) for path in photographs(image_folder)]
    files = {"": look_in([folder], captions)} if captions else caption_files(folder)
    found = read_references(files[""]) if captions else read_found(folder, files)
    file = found or read_sidecars(image_folder, folder)
    if file.form == PLAIN:
        raise UserError(
            f"{captions or 'the caption file'} names no images; write CSV with the columns image and caption"
        )
    file = file.renamed(inside)
    if splits:
        file = with_lists(file, look_in([folder], splits), skip_missing)
    if not file.split_of:
        file = _with_folders(file, on_disk)
    # lists among the texts of photographs would be texts
    around = (*(path.parent for path in files.values()), folder, folder / "splits") if found else ()
    file = with_splits(file, around, {"val": val, "test": test}, skip_missing)
    dataset = assemble(own_name, file, image_folder, captions_per_image, skip_missing)
    dataset = check_images(dataset, skip_unreadable or skip_missing, folder)
    used = {example.path for example in dataset.examples()}
    unused = [path for path in on_disk if f"{image_folder}/{path}" not in used]
    note = f"images without captions, which are not used: {len(unused):,} ({listed(unused)})"
    return dataset._replace(notes=(*dataset.notes, note)) if unused else dataset


def _with_folders(file: CaptionFile, paths: list[str]) -> CaptionFile:
    """Return the file with the path of a photograph in place of an image's bare name, since the path may say its
    split."""
    uses = Counter(map(os.path.basename, paths))
    path_of = {os.path.basename(path): path for path in paths}
    return file.renamed(lambda image: path_of[image] if uses[image] == 1 else image)


def write_rows(dataset: Any, cache: Path) -> Path:
    """Write the photographs and captions of a `datasets.Dataset`, or of a `DatasetDict` by split, to a folder.

    Photographs are written as they are stored, once for all rows that have them. A column of names instead of
    photographs is kept.

    Args:
        dataset: what `load_dataset` returns, with a column of images and one or several of captions.
        cache: the folder is in its `data_sets`, under a checksum of the content.
    """
    place = cache / "data_sets"
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as unfinished:
        text = "".join(f"{json.dumps(row, default=str)}\n" for row in _rows(dataset, Path(unfinished) / "images"))
        (Path(unfinished) / "captions.jsonl").write_text(text, encoding="utf-8")
        folder = place / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with suppress(OSError):  # it exists, from an earlier run or another process
            os.replace(unfinished, folder)
    return folder


def _rows(dataset: Any, images: Path) -> Iterator[dict[str, Any]]:
    """Yield each row as data of JSON, with the name of its photograph, which is written, and its split."""
    splits = dataset if isinstance(dataset, Mapping) else {"": dataset}
    for split, rows in splits.items():
        features = rows.features or {}
        photographs = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
        for name in photographs:
            rows = rows.cast_column(name, type(features[name])(decode=False))
        for row in rows:
            stored = [row.pop(name) for name in photographs]
            if stored:
                row["image"] = _write_photograph(stored[0], images)
            if len(splits) > 1 and not any(map(is_split_field, row)):
                row["split"] = split
            yield row


def _write_photograph(stored: Mapping[str, Any], images: Path) -> str:
    """Write an encoded photograph, or the file that it names, and return its name."""
    content = stored["bytes"] or read_regular(stored["path"])
    path = images / f"{hashlib.sha256(content).hexdigest()[:16]}.jpg"  # whatever its format
    images.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path.name
