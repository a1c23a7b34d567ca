"""Means of named values over the steps and processes of a run."""

import math
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from showattendtell.runtime.distributed import gather, rank

MAX_EXPONENT = 700.0


def perplexity(nll: float) -> float:
    """Return exp of a loss per word in nats; infinity where no float is so large."""
    return math.inf if nll > MAX_EXPONENT else math.exp(nll)


class Means:
    """Means of named values over steps, weighted by numbers of items, in double precision.

    The sums stay on the device of the values: `update` does not wait for a GPU. Names need not be declared, and
    processes may have different ones.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # (2,) of values times items, and of items

    @torch.no_grad()
    def update(self, values: Mapping[str, tuple[Tensor, Tensor | int]]) -> None:
        """Add by name the mean of some items, and their number."""
        for name, (mean, items) in values.items():
            dtype = torch.float32 if mean.device.type == "mps" else torch.float64
            sums = self._sums.get(name, torch.zeros(2, dtype=dtype)).to(mean.device)
            self._sums[name] = sums + items * torch.stack([mean.to(sums), sums.new_ones(())])

    def own_sums(self) -> dict[str, Tensor]:
        """Return by name a tensor (2,): both sums of this process."""
        return {name: sums.cpu() for name, sums in self._sums.items()}

    def load(self, sums: Mapping[str, Tensor]) -> None:
        """Continue from what `own_sums` returned."""
        self._sums = dict(sums)

    def compute(self, empty: Tensor | None = None) -> dict[str, Tensor]:
        """Return the means over all processes so far.

        Args:
            empty: the mean of a name without items; by default the name is left out.
        """
        parts = gather({str(rank()): self.own_sums()}).values()
        means = {}
        for name in dict.fromkeys(chain.from_iterable(parts)):
            total, number = torch.stack([part[name] for part in parts if name in part]).sum(dim=0)
            mean = total / number if number else empty
            if mean is not None:
                means[name] = mean
        return means

    def reset(self) -> None:
        """Forget all names."""
        self._sums = {}
