"""Find the captions in a folder as people have it: caption files of other names and places, one for each split, or a
text next to each photograph."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path, PurePath

from showattendtell.data.formats import FRAMES, PICKLES, find_delimiter, read_captions
from showattendtell.data.names import Names, files_below, is_photograph, photographs
from showattendtell.data.parsing import (
    COLUMNS,
    SPLIT_OF_SPELLING,
    CaptionFile,
    Sentences,
    read_text,
    words_of,
)
from showattendtell.data.splits import SKIP
from showattendtell.errors import UserError, listed

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
    ranked = defaultdict[tuple[int, int], list[Path]](list)
    files = list(files_below(root))
    beside = {os.path.splitext(file)[0] for file in files if is_photograph(file)}
    for file in files:
        base, suffix = os.path.splitext(file)
        if suffix.lower() not in (*TEXTS, *FRAMES, *PICKLES) or base in beside:
            continue
        path = Path(file)
        depth = len(path.relative_to(root).parts)
        rank = next(i for i, name in enumerate(PREFERRED) if re.fullmatch(name, path.stem.lower()))
        if depth <= DEEPEST and ((rank, depth) == (0, 1) or _holds_captions(path)):
            ranked[rank + len(PREFERRED) * (suffix.lower() in PICKLES), depth].append(path)
    if not ranked:
        return {}
    likeliest = sorted(ranked[min(ranked)])
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
    suffix = path.suffix.lower()
    if suffix in (*FRAMES, *PICKLES):
        return True
    with path.open("rb") as file:
        start = file.read(START)
        file.seek(max(os.fstat(file.fileno()).st_size - START, 0))
        texts = [part.decode("utf-8-sig", errors="replace") for part in (start, file.read())]
    if "json" in suffix:
        return bool(_BY_IMAGE.match(texts[0])) or any(map(_HAS_CAPTIONS.search, texts))
    first = texts[0].lstrip().partition("\n")[0]
    return bool(find_delimiter(first[:1000]) or re.match(r"[^\t]+#\d+\t", first))


def read_references(path: Path) -> CaptionFile:
    """Read a caption file. Raise `UserError` if it holds generated captions."""
    file = read_captions(path)
    if file.references:
        raise UserError(f"{path} holds a model's captions; give a file of reference captions")
    return file


def read_found(root: Path) -> CaptionFile | None:
    """Read the caption files that `caption_files` finds, and join them: a file for each split, unless they have splits
    of their own. Return None if there are none.

    Image names are relative to the folder of their caption file, where there is such a photograph.
    """
    files = caption_files(root)
    if not files:
        return None
    captions, splits, folders, notes = Sentences(), defaultdict[str, list[str]](list), dict[str, str](), list[str]()
    names = [str(path.relative_to(root)) for path in files.values()]
    if not names[0].startswith("captions."):
        notes.append(f"captions: {', '.join(names)}")
    for split, path in files.items():
        file = _relative(read_references(path), path.parent, root)
        for name, images in (file.splits or ({split: list(file.captions)} if split else {})).items():
            splits[name] += images
        for image, sentences in file.captions.items():
            captions.setdefault(image, []).extend(sentences)
        folders |= file.folders
        notes += file.notes
    return file._replace(captions=captions, splits=dict(splits), folders=folders, notes=tuple(notes))


def _relative(file: CaptionFile, folder: Path, root: Path) -> CaptionFile:
    first = next(iter(file.captions), "")
    if folder == root or not (folder / first).is_file() or (root / first).is_file():
        return file
    return file.renamed(lambda image: f"{folder.relative_to(root).as_posix()}/{image}")


def read_sidecars(folder: Path, root: Path, lists: Path | None = None, skip_missing: bool = False) -> CaptionFile:
    """Read a folder tree of photographs, each with a text of the same name, one caption per line: `.txt` or `.caption`
    next to it, or in a folder of its own under `root`.

    Args:
        lists: a folder of other texts, which may be inside this one.
        skip_missing: photographs without texts have no captions, and texts without photographs are ignored.

    Raises:
        UserError: a photograph has no text, a text has no photograph, or two photographs have the same name.
    """
    images: defaultdict[str, list[str]] = defaultdict(list)
    for photograph in sorted(photographs(folder)):
        name = str(PurePath(photograph).relative_to(folder))
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"the name of the image {name!r} is not UTF-8; rename it") from None
        images[os.path.splitext(name)[0]].append(name)
    folders = {os.path.dirname(base) for base in images}
    texts = {base: text for base, text in _texts_in(folder, lists).items() if os.path.dirname(base) in folders}
    if not texts.keys() & images.keys():
        by_image = Names(images)
        apart = {by_image.find(base): text for base, text in _texts_in(root, lists).items()}
        texts = {found[0]: text for found, text in apart.items() if found} or texts
    _check_pairs(folder, root, images, texts.keys() if not skip_missing else set(images))
    lines = {image: read_text(texts[base]).split("\n") if base in texts else [] for base, [image] in images.items()}
    return CaptionFile("texts", {image: [line for line in said if line.strip()] for image, said in lines.items()})


def hint_above(root: Path) -> str:
    """Return what to set if the captions are next to the folder of the data set; an empty text if they are not."""
    above = [path for name in ("captions.*", "results*.*", "*.token*") for path in sorted(root.parent.glob(name))]
    return f"{above[0].name} is next to it: set dataset.root={root.parent}, or " if above else ""


def _texts_in(folder: Path, lists: Path | None) -> dict[str, Path]:
    """Return the texts under a folder by their path in it, without suffix."""
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SIDECARS and path.parent != lists and path.stem.lower() not in ("readme", "license")
    }


def _check_pairs(folder: Path, root: Path, images: Mapping[str, list[str]], texts: Set[str]) -> None:
    if not images:
        packed = sorted(path.name for path in root.rglob("*") if path.suffix in (".zip", ".tar", ".gz", ".7z", ".rar"))
        advice = f"unpack {listed(packed)}" if packed else "set dataset.images to the folder of the images"
        raise UserError(f"{folder} holds no images; {advice}")
    for names in images.values():
        if len(names) > 1:
            raise UserError(f"{' and '.join(names)} in {folder} share the captions of one text; rename one of them")
    without_text = [name for base, [name] in images.items() if base not in texts]
    if len(without_text) == len(images):
        raise UserError(
            f"no captions were found in {root}: neither a table or JSON file with the columns image and caption, nor a "
            f"text next to {without_text[0]} and the other {len(images) - 1:,} images; {hint_above(root)}give the file "
            "as dataset.captions=..."
        )
    if without_text:
        raise UserError(
            f"{len(without_text):,} of {len(images):,} images in {folder} have no text next to them, first "
            f"{without_text[0]}, which needs a .txt file of its name with one caption per line; give a caption file as "
            f"dataset.captions=..., or {SKIP}"
        )
    without_image = sorted(texts - images.keys())
    if without_image:
        raise UserError(
            f"texts without an image next to them in {folder}: {len(without_image):,}, first {without_image[0]}; "
            f"add the images, or {SKIP}"
        )
