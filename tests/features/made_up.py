"""Stores of made-up grids, and what the tests of stores share."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from showattendtell.features.plan import Encode, Encoded, Plan
from showattendtell.features.writer import write_shards, write_store

SETTINGS = {
    "network": "tiny",
    "preprocessing": {"crop": 4, "mean": [0.5, 0.5, 0.5]},
    "grid": [2, 3],
    "dim": 5,
    "dtype": "float16",
    "views": 2,
}
NAMES = [f"photograph {number}.jpg" for number in range(300)]
SHARD_SIZE = 130
"""Five batches, the last of them of two images."""


def made_up_grids(names: Sequence[str], settings: dict[str, Any] = SETTINGS) -> Tensor:
    """Numbers that fp16 has to round, other ones for each name and view."""
    rows, columns = settings["grid"]
    shape = (settings["views"], rows * columns, settings["dim"])
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(hash_of(name))) for name in names])


def hash_of(name: str) -> int:
    return len(name) * 1000 + int("".join(filter(str.isdigit, name)))


class Encoding:
    """Gives made-up grids, and keeps in `done` which batches it was asked for; stops after some of them."""

    def __init__(self, settings: dict[str, Any] = SETTINGS, broken: Sequence[str] = (), batches: int | None = None):
        self.settings, self.broken, self.left, self.done = settings, broken, batches, []

    def __call__(self, batches: Sequence[Sequence[str]]) -> Iterator[Encoded]:
        for batch in batches:
            if self.left is not None and len(self.done) == self.left:
                raise InterruptedError
            self.done.append(list(batch))
            read = [image for image in batch if image not in self.broken]
            grids = made_up_grids(read, self.settings) if read else torch.zeros(0, 2, 6, 5)
            yield Encoded(read, grids, {image: f"{image} is broken" for image in batch if image in self.broken})


def plan_of(names: Sequence[str] = NAMES, settings: dict[str, Any] = SETTINGS, dataset: str = "made up") -> Plan:
    return Plan(dataset, settings, list(names), SHARD_SIZE)


def write(path: Path, plan: Plan | None = None, encode: Encode | None = None) -> None:
    plan = plan or plan_of()
    own = encode or Encoding(dict(plan.settings))
    write_store(path, plan, lambda: write_shards(path, plan, own))


def content(path: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def damage(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))
