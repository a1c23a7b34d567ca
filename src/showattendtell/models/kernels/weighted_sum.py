"""Weighted sums of regions a_i with attention weights m: z = sum_i m_i a_i."""

import torch
from torch import Tensor

from showattendtell.models.kernels import parallel
from showattendtell.models.kernels.parallel import CaptionGroups, compilable


class WeightedSum:
    """Weighted sums for B captions. The first two methods take the first b captions.

    Args:
        regions: (I, L, D).
    """

    def __init__(self, groups: CaptionGroups, regions: Tensor):
        self.groups, self.regions = groups, regions.contiguous()
        self._compiled = compilable(regions)

    def read(self, maps: Tensor) -> Tensor:
        """Return z (b, D) of m (b, L)."""
        contexts = maps.new_zeros(len(maps), self.regions.shape[2])
        if self._compiled:
            self.groups.run(parallel.read, len(maps), self.regions, maps.contiguous(), contexts)
            return contexts
        for images, rows in self.groups.pieces(len(maps)):
            contexts[rows] = _by_image(maps[rows], self.regions[images])
        return contexts

    def read_back(self, gradient: Tensor) -> Tensor:
        """Return dm (b, L) from dz (b, D): dm_i = a_i . dz."""
        to_maps = gradient.new_empty(len(gradient), self.regions.shape[1])
        if self._compiled:
            self.groups.run(parallel.read_back, len(gradient), self.regions, gradient.contiguous(), to_maps)
            return to_maps
        for images, rows in self.groups.pieces(len(gradient)):
            to_maps[rows] = _by_image(gradient[rows], self.regions[images].mT)
        return to_maps

    def regions_back(self, maps: Tensor, gradient: Tensor) -> Tensor:
        """Return da (I, L, D) from m (B, T, L) and dz (B, T, D) of T steps: da_i = sum of m_i dz."""
        return torch.zeros_like(self.regions).index_add_(0, self.groups.image_index, maps.mT @ gradient)


def _by_image(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return x M of every row x (k, p), with one matrix M (1, p, q) for all rows or one per row (k, p, q)."""
    return rows @ matrices[0] if len(matrices) == 1 else (rows.unsqueeze(1) @ matrices).squeeze(1)
