"""Names of images as people write them: with another folder, case or suffix than on the disk, or as a number."""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from showattendtell.data.image_limits import SUFFIXES

DEEPEST = 6
"""Levels of folders that are searched; links to folders are followed."""

_NUMBER = re.compile(r"(?:.*[a-z_-])?0*(\d+)")
"""The stem of a numbered file: `COCO_val2014_000000000042`, `img_42` or `42`."""

_UPLOADED = re.compile(r"[0-9a-f]{8}-")
"""What Label Studio puts before the name of an upload."""

_LEADS_OUT = re.compile(r"(\w:)?[/\\]+|(\.{1,2}[/\\]+)+")


def photographs(folder: Path) -> Iterator[str]:
    """Yield the path of every image file under a folder, in order; hidden files are left out."""
    depth = len(folder.parts) + DEEPEST
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] not in "._" and len(Path(place).parts) < depth)
        for name in sorted(files):
            if name[0] != "." and os.path.splitext(name)[1].lower() in SUFFIXES:
                yield f"{place}/{name}"


def inside(name: str) -> str:
    r"""Return a name without what leads out of its folder, as in `/content/images/a.jpg`, `C:\images\a.jpg` or
    `../images/a.jpg`; other names are returned as they are."""
    if not _LEADS_OUT.match(name):
        return name
    return _LEADS_OUT.sub("", name, count=1).replace("\\", "/")


class Names:
    """Known names of images, which are found by other spellings: another folder, case, Unicode form or suffix, or by
    their number."""

    def __init__(self, known: Iterable[str]):
        self.names, self._known = set(known), defaultdict[str, list[str]](list)
        for name in self.names:
            stem = spelling(name)[-1]
            self._known[stem].append(name)
            match = _NUMBER.fullmatch(stem)
            if match and match[1] != stem:
                self._known[f"number {match[1]}"].append(name)

    def find(self, name: str) -> tuple[str, int] | None:
        """Return the one known name that fits best, and how many of its last parts agree, folders included; None if
        none does, or several do alike. A number fits a name that ends with it."""
        parts = spelling(name)
        number = parts[-1].lstrip("0") if parts[-1].isdecimal() else ""
        spellings = (parts[-1], f"number {number}", _UPLOADED.sub("", parts[-1]))
        candidates = next((self._known[stem] for stem in spellings if stem in self._known), ())
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
