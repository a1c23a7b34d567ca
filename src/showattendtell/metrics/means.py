"""Means of named values over the steps and processes of a run."""

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from showattendtell.runtime.distributed import gather, rank


class Means:
    """Means of named values over steps, weighted by numbers of items, in double precision.

    The sums stay on the device of the values: `update` does not wait for a GPU. Names need not be declared, and
    processes may have different ones.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor | int]] = {}  # of values times items, and of items

    @torch.no_grad()
    def update(self, values: Mapping[str, tuple[Tensor, Tensor | int]]) -> None:
        """Add by name the mean of some items, and their number."""
        for name, (mean, items) in values.items():
            dtype = torch.float32 if mean.device.type == "mps" else torch.float64
            total, number = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + mean.to(dtype) * items, number + items

    def sums(self) -> dict[str, Tensor]:
        """Return by name a tensor (2,): the sum of values times items over all processes, and that of items."""
        parts = gather({str(rank()): self.own_sums()}).values()
        names = dict.fromkeys(chain.from_iterable(parts))
        return {name: torch.stack([part[name] for part in parts if name in part]).sum(dim=0) for name in names}

    def own_sums(self) -> dict[str, Tensor]:
        """Return by name a tensor (2,): both sums of this process."""
        return {name: torch.tensor(list(map(float, both)), dtype=torch.float64) for name, both in self._sums.items()}

    def load(self, sums: Mapping[str, Tensor]) -> None:
        """Continue from what `own_sums` returned."""
        self._sums = {name: (total, number) for name, (total, number) in sums.items()}

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all processes so far, of all names that have items."""
        return {name: total / items for name, (total, items) in self.sums().items() if items}

    def reset(self) -> None:
        """Forget all names."""
        self._sums = {}
