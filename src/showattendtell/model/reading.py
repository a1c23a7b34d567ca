"""What captions read of their images' regions a_i under maps m: z = sum_i m_i a_i."""

from functools import cached_property

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

    @cached_property
    def _by_caption(self) -> Tensor:
        """A copy of the regions for each caption, (B, L, D)."""
        return self.regions[self.groups.owners]

    def read(self, maps: Tensor) -> Tensor:
        """z (b, D) of m (b, L)."""
        if not self._compiled:
            return (maps.unsqueeze(1) @ self._by_caption[: len(maps)]).squeeze(1)
        contexts = maps.new_zeros(len(maps), self.regions.shape[2])
        self.groups.run(loops.read, len(maps), self.regions, maps.contiguous(), contexts)
        return contexts

    def read_back(self, gradient: Tensor) -> Tensor:
        """m's gradient (b, L) from z's (b, D)."""
        if not self._compiled:
            return (self._by_caption[: len(gradient)] @ gradient.unsqueeze(2)).squeeze(2)
        to_maps = gradient.new_empty(len(gradient), self.regions.shape[1])
        self.groups.run(loops.read_back, len(gradient), self.regions, gradient.contiguous(), to_maps)
        return to_maps

    def regions_back(self, maps: Tensor, gradient: Tensor) -> Tensor:
        """The regions' gradient (I, L, D) from m and z's gradient of T steps, (B, T, L) and (B, T, D)."""
        return torch.zeros_like(self.regions).index_add_(0, self.groups.owners, maps.mT @ gradient)
