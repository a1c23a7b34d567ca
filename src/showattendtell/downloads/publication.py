"""What a data set consists of as it is published: its archives, and whether a file is what was published."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from showattendtell.arguments import PositiveInt, Text

Part = Literal["images", "captions", "splits"]
Checksum = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")]


class Archive(NamedTuple):
    """A zip or tar file of a data set.

    part: what is in it.
    file: its name.
    members: patterns of the files in it that are unpacked; they keep their folders.
    base: the address of the folder that it is published in; null where it has none and must be asked for.
    num_bytes: its size; null where that is not known, or any will do.
    checksum: `sha256:...` or `md5:...`; null where none is known, or any will do.
    places: files or folders in the root, one of which shows that the user has put there what the archive holds.
    """

    part: Part
    file: Text
    members: Sequence[Text]
    base: Text | None = None
    num_bytes: PositiveInt | None = None
    checksum: Checksum | None = None
    places: Sequence[Text] = ()

    def find_difference(self, path: Path) -> str | None:
        """In what a file differs from the archive that was published: `has 3 bytes instead of 5`."""
        num_bytes = path.stat().st_size
        if self.num_bytes not in (None, num_bytes):
            return f"has {num_bytes:,} bytes instead of {self.num_bytes:,}"
        if self.checksum is None:
            return None
        kind, _, expected = self.checksum.partition(":")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        return None if found == expected else f"has the {kind} checksum {found} instead of {expected}"


class Publication(NamedTuple):
    """The archives of a data set.

    root: the folder that they are unpacked into; training takes it as dataset.root, too.
    licence: what may be done with it.
    archives: the archives by name.
    request: how to ask for those that have no address.
    """

    root: Text
    licence: Text
    archives: Mapping[str, Archive]
    request: Text | None = None
