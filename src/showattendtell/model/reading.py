"""What captions read of their images' regions a_i under maps m: z = sum_i m_i a_i."""

import torch
from torch import Tensor

from showattendtell.model import loops
from showattendtell.model.loops import Groups, compilable


class Reading:
    """Of B captions. The first two methods take the first b of them.

    Args:
        regions: (I, L, D).
    """

    def __init__(self, groups: Groups, regions: Tensor):
        self.groups, self.regions = groups, regions.contiguous()
        self._compiled = compilable(regions)

    def read(self, maps: Tensor) -> Tensor:
        """z (b, D) of m (b, L)."""
        contexts = maps.new_zeros(len(maps), self.regions.shape[2])
        if self._compiled:
            self.groups.run(loops.read, len(maps), self.regions, maps.contiguous(), contexts)
            return contexts
        for images, rows in self.groups.pieces(len(maps)):
            contexts[rows] = _by_image(maps[rows], self.regions[images])
        return contexts

    def read_back(self, gradient: Tensor) -> Tensor:
        """m's gradient (b, L) from z's (b, D)."""
        to_maps = gradient.new_empty(len(gradient), self.regions.shape[1])
        if self._compiled:
            self.groups.run(loops.read_back, len(gradient), self.regions, gradient.contiguous(), to_maps)
            return to_maps
        for images, rows in self.groups.pieces(len(gradient)):
            to_maps[rows] = _by_image(gradient[rows], self.regions[images].mT)
        return to_maps

    def regions_back(self, maps: Tensor, gradient: Tensor) -> Tensor:
        """The regions' gradient (I, L, D) from m and z's gradient of T steps, (B, T, L) and (B, T, D)."""
        return torch.zeros_like(self.regions).index_add_(0, self.groups.owners, maps.mT @ gradient)


def _by_image(rows: Tensor, matrices: Tensor) -> Tensor:
    """x M of every row x (k, p), with one matrix (1, p, q) for all or one for each (k, p, q)."""
    return rows @ matrices[0] if len(matrices) == 1 else (rows.unsqueeze(1) @ matrices).squeeze(1)
