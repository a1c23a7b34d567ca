"""Means of training losses and of other values over steps, as `torchmetrics.Metric` classes."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from showattendtell.runtime.distributed import gather, rank

NamedMeans = Mapping[str, Tensor | tuple[Tensor, Tensor | int]]
"""By name, pairs of the mean of some items, and their number."""


class Means(Metric):
    """Means of named values over steps, weighted by numbers of items, in double precision.

    The sums stay on the device of the values; `update` does not synchronize with it. Names need not be declared, and
    processes may have different names.
    """

    full_state_update = False

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._rows: dict[str, Tensor] = {}  # (2,): the sum of values times items, and the number of items

    def forward(self, values: NamedMeans) -> dict[str, Tensor]:
        """Add values, and return their means."""
        self.update(values)
        return {name: mean for name, (mean, _) in values.items()}

    def update(self, values: NamedMeans) -> None:
        """Add values by name; also what `merged_means` returned."""
        for name, (mean, items) in values.items():
            dtype = torch.float32 if mean.device.type == "mps" else torch.float64
            empty = torch.zeros(2, dtype=dtype, device=mean.device)
            self._rows[name] = self._add(self._rows.get(name, empty).to(empty), mean, items)

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all processes so far, of all names that have items."""
        return {name: mean for name, (mean, items) in self.merged_means().items() if items}

    def merged_means(self) -> dict[str, Tensor]:
        """Return by name a tensor (2,): the mean over all processes, and the number of items."""
        parts = gather({str(rank()): {name: row.cpu() for name, row in self._rows.items()}}).values()
        merged = {}
        for name in dict.fromkeys(chain.from_iterable(parts)):
            rows = torch.stack([part[name] for part in parts if name in part])
            merged[name] = torch.stack([self._mean(rows), rows[:, 1].sum()])
        return merged

    def reset(self) -> None:
        """Forget all names."""
        super().reset()
        self._rows = {}

    def _add(self, row: Tensor, mean: Tensor, items: Tensor | int) -> Tensor:
        """Return a row with further items."""
        return torch.stack([row[0] + mean.to(row) * items, row[1] + items])

    def _mean(self, rows: Tensor) -> Tensor:
        """Return the mean of all items of rows (processes, 2)."""
        total, items = rows.sum(dim=0)
        return total / items.clamp(min=1)


class RunningMeans(Means):
    """Means that are updated in single precision, m += (x - m) k / n for k further items of n in all.

    Training losses are logged with this metric, so that logs of different versions are comparable. Means of several
    processes are averaged in double precision.
    """

    # The first number of a row is the mean.

    def _add(self, row: Tensor, mean: Tensor, items: Tensor | int) -> Tensor:
        number, previous = row[1] + items, row[0].float()
        share = (items / number.clamp(min=1)).float()
        return torch.stack([(previous + (mean.float() - previous) * share).to(row), number])

    def _mean(self, rows: Tensor) -> Tensor:
        if len(rows) == 1:
            return rows[0, 0]
        return super()._mean(torch.stack([rows.prod(dim=1), rows[:, 1]], dim=1))
