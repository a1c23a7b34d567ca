"""What a store that is to be written will hold, and how it comes by its grids."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.features.layout import FORMAT, Settings, shard_bytes

SHARD_SIZE = 1024
"""Images in a shard."""


class Plan(NamedTuple):
    """What a store is to hold: the grids of the images, in this order."""

    dataset: str
    settings: Settings
    images: Sequence[str]
    shard_size: int = SHARD_SIZE

    @property
    def shards(self) -> list[Sequence[str]]:
        """The images of each."""
        return [self.images[start : start + self.shard_size] for start in range(0, len(self.images), self.shard_size)]

    @property
    def num_bytes(self) -> int:
        return sum(shard_bytes(self.settings, len(images)) for images in self.shards)

    def describe(self) -> dict[str, Any]:
        """What must be equal for an unfinished store to be continued, as JSON gives it back."""
        names = hashlib.sha256("\n".join(self.images).encode()).hexdigest()
        own = {"settings": self.settings, "shard_size": self.shard_size, "images_sha256": names}
        return json.loads(json.dumps({"format": FORMAT, "dataset": self.dataset, **own}))


class Encoded(NamedTuple):
    """A batch of images: the names of those that could be read and their grids (N, views, L, D), and why not the
    others."""

    images: Sequence[str]
    grids: Tensor
    skipped: Mapping[str, str]


Encode = Callable[[Sequence[Sequence[str]]], Iterator[Encoded]]
"""The batches of a shard, as names, to their grids."""


@contextmanager
def telling_faults(path: Path, plan: Plan) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise UserError(
            f"{path} cannot be written ({fault.strerror}); it needs {decimal(plan.num_bytes)}: make room, or set cache "
            "to a folder on another disk"
        ) from None
