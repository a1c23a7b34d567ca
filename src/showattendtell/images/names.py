"""Folders of data sets; and names of images as people write them: with another folder, case or suffix than on the
disk, or as a number."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

from showattendtell.errors import UserError
from showattendtell.images.limits import SUFFIXES
from showattendtell.runtime.files import expand_home

_NUMBER = re.compile(r"(?:.*[a-z_-])?(\d+)")
"""The stem of a numbered file: `COCO_val2014_000000000042`, `img_42` or `42`."""

_UPLOADED = re.compile(r"[0-9a-f]{8}-")
"""What Label Studio puts before the name of an upload."""

_LEADS_OUT = re.compile(r"(\w:)?[/\\]|\.[/\\]|(.*[/\\])?\.\.([/\\]|$)", re.DOTALL)


COCO = "curl -C - -O 'http://images.cocodataset.org/zips/{train,val}%s.zip'"
FORM = "fill in the form of its authors at https://forms.illinois.edu/sec/%s"
PUBLISHED = {
    "coco": ("MS COCO's train2014 and val2014", COCO % 2014),
    "coco2017": ("MS COCO's train2017 and val2017", COCO % 2017),
    "flickr8k": ("Flickr8k", FORM % 1713398),
    "flickr30k": ("Flickr30k", FORM % 229675),
}
"""Content of the published data sets, and how to get their photographs."""

GET_SPLITS = "curl -C - -O https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
"""How to get Karpathy's captions and splits of the data sets."""


def dataset_folder(root: str, content: str) -> Path:
    """Return the folder of a data set.

    Args:
        root: its path.
        content: what it holds, for the error message: a name of `PUBLISHED`, or a phrase.

    Raises:
        UserError: if it is not a folder.
    """
    folder = expand_home(root)
    if not folder.is_dir():
        error = "is a file, not a folder" if folder.exists() else "does not exist"
        held, way = PUBLISHED.get(content, (content, ""))
        hint = f", or get its photographs: {way} (docs/data.md)" if way else ""
        raise UserError(
            f"the folder {folder.absolute()} {error}; set dataset.root to the folder that holds {held}{hint}"
        )
    return folder


def files_below(folder: str | Path, report: Callable[[OSError], None] | None = None) -> Iterator[str]:
    """Yield the path of every file in and below a folder, in order, without hidden ones.

    Linked folders are searched, each once, but for those above the given folder.

    Args:
        report: called for a folder that cannot be read; by default it is skipped.
    """
    # a link to a folder above this one would lead to everything next to it
    searched = {*map(str, Path(folder).resolve().parents)}
    for place, folders, files in os.walk(folder, followlinks=True, onerror=report):
        if os.path.realpath(place) in searched:
            folders.clear()
            continue
        searched.add(os.path.realpath(place))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (os.path.join(place, name) for name in sorted(files) if not name.startswith("."))
        yield from filter(os.path.isfile, paths)


def is_photograph(path: str) -> bool:
    """Return whether a file is one of a photograph, by its suffix."""
    return os.path.splitext(path)[1].lower() in SUFFIXES


def photographs(folder: str | Path) -> Iterator[str]:
    """Yield the path of every image file in and below a folder, in order."""
    return filter(is_photograph, files_below(folder))


def inside(name: str) -> str:
    r"""Return a name without what leads out of its folder, as in `/content/images/a.jpg`, `C:\images\a.jpg` or
    `../images/a.jpg`; other names are returned as they are."""
    if not _LEADS_OUT.match(name):
        return name
    parts = re.split(r"[/\\]", name)
    return "/".join(part for part in parts if part not in ("", ".", "..") and not re.fullmatch(r"\w:", part))


class Names:
    """Known names of images, which are found by other spellings: another folder, case, Unicode form or suffix, or by
    their number."""

    def __init__(self, known: Iterable[str]):
        self.names = set(known)

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        by_stem = defaultdict[str, list[str]](list)
        for name in self.names:
            stem = spelling(name)[-1]
            by_stem[stem].append(name)
            match = _NUMBER.fullmatch(stem)
            if match and (number := match[1].lstrip("0") or "0") != stem:
                by_stem[f"number {number}"].append(name)
        return by_stem

    def find(self, name: str) -> tuple[str, int] | None:
        """Return the one known name that fits best, and how many of its last parts agree, folders included; None if
        none does, or several do alike. A number fits a name that ends with it."""
        parts = spelling(name)
        number = parts[-1].lstrip("0") if parts[-1].isdecimal() else ""
        spellings = (parts[-1], f"number {number}", _UPLOADED.sub("", parts[-1]))
        candidates = next((self._by_stem[stem] for stem in spellings if stem in self._by_stem), ())
        agreeing = sorted((*_agreement(parts, spelling(known)), known) for known in candidates)
        if not agreeing or (len(agreeing) > 1 and agreeing[-1][:2] == agreeing[-2][:2]):
            return None
        agreed, _, best = agreeing[-1]
        return best, agreed

    def find_name(self, name: str) -> str:
        """Return the known name of an image, or its own if none fits."""
        found = None if name in self.names else self.find(name)
        return found[0] if found else name


def spelling(name: str) -> list[str]:
    """Return the folders and the stem of an image, in one case and Unicode form."""
    *folders, stem = unicodedata.normalize("NFC", name).casefold().replace("\\", "/").split("/")
    while os.path.splitext(stem)[1] in SUFFIXES:
        stem = os.path.splitext(stem)[0]
    return [*folders, stem]


def _agreement(parts: list[str], others: list[str]) -> tuple[int, bool]:
    """Return the number of last parts that agree, of which one does in any case; and whether all of `others` do."""
    length = 1
    while length < min(len(parts), len(others)) and parts[-length - 1] == others[-length - 1]:
        length += 1
    return length, length == len(others)
