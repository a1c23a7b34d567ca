"""How the numbers of a grid are kept: as they are, in 16 bits, or as 8-bit multiples of each region's own step."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Precision = Literal["float16", "int8"]


class Numbers(ABC):
    """A form in which grids are stored."""

    @abstractmethod
    def record(self, regions: int, dim: int) -> np.dtype:
        """The type of one grid."""

    @abstractmethod
    def pack(self, grids: Tensor) -> NDArray:
        """(N, L, D), float32 to N grids."""

    @abstractmethod
    def unpack(self, packed: NDArray) -> Tensor:
        """N grids to (N, L, D)."""

    @abstractmethod
    def are_finite(self, packed: NDArray) -> bool: ...


class Float16(Numbers):
    """Read back as float16."""

    def record(self, regions: int, dim: int) -> np.dtype:
        return np.dtype((np.float16, (regions, dim)))

    def pack(self, grids: Tensor) -> NDArray:
        return grids.to(torch.float16).contiguous().numpy()

    def unpack(self, packed: NDArray) -> Tensor:
        return torch.from_numpy(packed)

    def are_finite(self, packed: NDArray) -> bool:
        exponent = np.uint16(0x7C00)  # all ones in infinity and in what is no number
        return not ((packed.view(np.uint16) & exponent) == exponent).any()


class Int8(Numbers):
    """value = q * step with q from -127 to 127 and step = max |value| / 127 of its region. Read back as float32."""

    def record(self, regions: int, dim: int) -> np.dtype:
        return np.dtype([("step", np.float32, (regions,)), ("q", np.int8, (regions, dim))])

    def pack(self, grids: Tensor) -> NDArray:
        values = grids.float().numpy()
        packed = np.empty(len(values), self.record(*values.shape[1:]))
        packed["step"] = np.abs(values).max(axis=2) / 127
        step = packed["step"][..., np.newaxis]
        with np.errstate(invalid="ignore"):  # infinity is told by its step
            packed["q"] = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0))
        return packed

    def unpack(self, packed: NDArray) -> Tensor:
        values = packed["q"].astype(np.float32)
        values *= packed["step"][..., np.newaxis]
        return torch.from_numpy(values)

    def are_finite(self, packed: NDArray) -> bool:
        return bool(np.isfinite(packed["step"]).all())


NUMBERS: dict[Precision, Numbers] = {"float16": Float16(), "int8": Int8()}
