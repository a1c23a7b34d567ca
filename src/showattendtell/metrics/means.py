"""Means of training losses and of other values over steps, as `torchmetrics.Metric` classes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from showattendtell.runtime.distributed import gather, rank


class Means(Metric):
    """Means of named values over steps, weighted by numbers of items, in double precision.

    The sums stay on the device of the values; `update` does not synchronize with it. Names need not be declared, and
    processes may have different names.
    """

    full_state_update = False
    sums: Tensor  # (names, 2): sum of values times items, and number of items

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.names: list[str] = []
        self.add_state("sums", torch.zeros(0, 2), dist_reduce_fx="sum")

    def update(self, values: Mapping[str, Tensor | tuple[Tensor, Tensor | int]]) -> None:
        """Add values by name: pairs of the mean of some items, and their number; also what `merged_means` returned."""
        self._arrange(list(dict.fromkeys([*self.names, *values])))
        if self.sums.is_inference():  # reset by `Trainer.validate`: cannot be updated in place elsewhere
            self.sums = self.sums.clone()
        for name, (mean, items) in values.items():
            self._add(self.sums[self.names.index(name)], mean.detach(), items)

    def compute(self) -> dict[str, Tensor]:
        """Return the means so far of all names that have items."""
        rows = zip(self.names, self._means(), self.sums, strict=True)
        return {name: mean for name, mean, (_, items) in rows if items}

    def merged_means(self) -> dict[str, Tensor]:
        """Return by name a tensor (2,): the mean over all processes, and the number of items."""
        with self.sync_context():
            rows = torch.stack([self._means(), self.sums[:, 1]], dim=1)
            return dict(zip(self.names, rows.cpu(), strict=True))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Sum over processes."""
        self._share_names()
        super().sync(*args, **kwargs)

    def _share_names(self) -> None:
        """Arrange the rows of `sums` alike in all processes."""
        by_process = gather({str(rank()): self.names}).values()
        self._arrange(list(dict.fromkeys(name for names in by_process for name in names)))

    def reset(self) -> None:
        """Forget all names."""
        super().reset()
        self.names = []

    def _add(self, row: Tensor, mean: Tensor, items: Tensor | int) -> None:
        row[0] += mean.to(row) * items
        row[1] += items

    def _means(self) -> Tensor:
        return self.sums[:, 0] / self.sums[:, 1].clamp(min=1)

    def _arrange(self, names: list[str]) -> None:
        if names == self.names:
            return
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        sums = torch.zeros(len(names), 2, dtype=dtype, device=self.sums.device)
        for name, row in zip(self.names, self.sums, strict=True):
            sums[names.index(name)] = row
        self.names, self.sums = names, sums


class RunningMeans(Means):
    """Means that are updated in single precision, m += (x - m) k / n for k further items of n in all.

    Training losses are logged with this metric, so that logs of different versions are comparable. Means of several
    processes are averaged in double precision.
    """

    # Column 0 of `sums` holds means, and only while the metric is synchronized their sums, which torchmetrics adds.

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Average over processes."""
        self._share_names()
        means = self.sums
        self.sums = torch.stack([means[:, 0] * means[:, 1], means[:, 1]], dim=1)
        Metric.sync(self, *args, **kwargs)
        if self._cache is None:  # there is one process, and torchmetrics has not synchronized
            self.sums = means
        else:  # torchmetrics restores this when it ends the synchronization
            self._cache["sums"] = means

    def _add(self, row: Tensor, mean: Tensor, items: Tensor | int) -> None:
        row[1] += items
        previous = row[0].float()
        row[0] = previous + (mean.float() - previous) * (items / row[1].clamp(min=1)).float()

    def _means(self) -> Tensor:
        return super()._means() if self._is_synced else self.sums[:, 0]
