"""Score functions of attention: e_i = f_att(a_i, h).

A score is a module with two methods. `precompute` takes the regions (R, L, D) once per image and returns their keys,
with one row per image. `forward` takes the keys and the states (R, K, n) of the K captions of each row, and returns
e (R, K, H, L). H is the number of attention maps, 1 for all scores except `MultiheadScore`.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.models.initialization import start_small
from showattendtell.models.kernels import without_autocast
from showattendtell.models.kernels.attention import AdditiveKeys, AdditiveScores
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.products import Linear
from showattendtell.settings import PositiveFloat, PositiveInt


class ScoreFunction(nn.Module, ABC):
    """Base class of scores: two methods, and the number of attention maps `num_heads`."""

    num_heads = 1

    @abstractmethod
    def precompute(self, regions: Tensor) -> Any:
        """Return everything that depends on the regions (R, L, D) alone: a tensor with R rows of any shape."""

    @abstractmethod
    def forward(self, keys: Any, hidden: Tensor) -> Tensor:
        """Return the scores e (R, K, H, L) of the states (R, K, n)."""


Width = PositiveInt | Literal["state", "region"]


def _resolve_width(width: Width, region_dim: int, hidden_dim: int) -> int:
    if isinstance(width, int):
        return width
    return hidden_dim if width == "state" else region_dim


class AdditiveScore(ScoreFunction):
    """e_i = u . tanh(W_a a_i + W_h h + b) (Bahdanau et al. 2015; Xu et al. 2015).

    Args:
        width: A, the hidden width: a number, or the width of the state (state) or of a region (region).
        depth: the number of layers on the regions; layers after the first are tanh(linear).
    """

    fused = True

    def __init__(
        self, region_dim: PositiveInt, hidden_dim: PositiveInt, width: Width = "state", depth: PositiveInt = 1
    ):
        super().__init__()
        width = _resolve_width(width, region_dim, hidden_dim)
        self.key = start_small(Linear(region_dim, width, bias=False))
        self.deeper = nn.ModuleList(Linear(width, width) for _ in range(depth - 1))
        self.query = Linear(hidden_dim, width)
        self.score = Linear(width, 1, bias=False)

    def precompute(self, regions: Tensor) -> AdditiveKeys:
        keys = self.key(regions).to(regions.dtype)
        for layer in self.deeper:
            keys = torch.tanh(layer(keys)).to(regions.dtype)
        return AdditiveKeys(keys)

    def forward(self, keys: AdditiveKeys, hidden: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # the plain equation; the exported graph has no custom kernels
            sums = keys.values.unsqueeze(1) + self.query(hidden).unsqueeze(2)  # (R, K, L, A)
            return self.score(torch.tanh(sums)).squeeze(3).unsqueeze(2)
        if keys.values.dtype.itemsize < 4:
            keys = AdditiveKeys(keys.values.float())
        images, captions = hidden.shape[:2]
        # the kernel takes the image of each caption; here K captions of every image, one after the other
        groups = CaptionGroups(torch.arange(images, device=hidden.device).repeat_interleave(captions), images)
        queries, weights = self.query(hidden).flatten(0, 1).to(keys.values.dtype), self.score.weight.squeeze(0)
        with without_autocast(hidden.device):
            # the kernel leaves out the constant -sum_a u_a
            scores = AdditiveScores.apply(groups, keys.values, keys.decays, queries, weights) - weights.sum()  # (B, L)
        return scores.view(images, captions, 1, -1)


class DotScore(ScoreFunction):
    """e_i = (W_h h + b) . (W_a a_i) (the dot score of Luong et al. 2015, on projections of equal width).

    Args:
        width: A, the width of the product: a number, or the width of the state (state) or of a region (region).
    """

    def __init__(self, region_dim: PositiveInt, hidden_dim: PositiveInt, width: Width = "state"):
        super().__init__()
        width = _resolve_width(width, region_dim, hidden_dim)
        self.key = start_small(Linear(region_dim, width, bias=False))
        self.query = Linear(hidden_dim, width)

    def precompute(self, regions: Tensor) -> Tensor:
        return self.key(regions)  # (R, L, A)

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        return (self.query(hidden) @ keys.mT).unsqueeze(2)


class GeneralScore(ScoreFunction):
    """e_i = h . W a_i, bilinear in the state and the region (the general score of Luong et al. 2015)."""

    def __init__(self, region_dim: PositiveInt, hidden_dim: PositiveInt):
        super().__init__()
        self.key = start_small(Linear(region_dim, hidden_dim, bias=False))

    def precompute(self, regions: Tensor) -> Tensor:
        return self.key(regions)  # (R, L, n)

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        return (hidden @ keys.mT).unsqueeze(2)


class CosineScore(DotScore):
    """e_i = s cos(W_h h + b, W_a a_i) with a learned scale s (Graves et al. 2014, Neural Turing Machines, Eq. 5 and 6).

    Args:
        width: A, the width of the two vectors: a number, or the width of the state (state) or of a region (region).
        scale: the initial s; e lies between -s and s.
    """

    def __init__(
        self, region_dim: PositiveInt, hidden_dim: PositiveInt, width: Width = "state", scale: PositiveFloat = 10.0
    ):
        super().__init__(region_dim, hidden_dim, width)
        self.scale = nn.Parameter(torch.tensor(scale))

    def precompute(self, regions: Tensor) -> Tensor:
        return F.normalize(self.key(regions), dim=-1)

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        return self.scale * (F.normalize(self.query(hidden), dim=-1) @ keys.mT).unsqueeze(2)


class MultiheadScore(DotScore):
    """e_hi = (W_h h + b)_h . (W_a a_i)_h / sqrt(A / H): a scaled dot product in each of H slices (Vaswani et al. 2017).

    Args:
        width: A, the width of all heads together: a number, or the width of the state (state) or of a region (region).
        num_heads: H, the number of attention maps.

    Raises:
        ValueError: `num_heads` does not divide the width.
    """

    def __init__(
        self, region_dim: PositiveInt, hidden_dim: PositiveInt, width: Width = "state", num_heads: PositiveInt = 8
    ):
        width = _resolve_width(width, region_dim, hidden_dim)
        if width % num_heads:
            raise ValueError(f"num_heads must divide the width {width}, got num_heads={num_heads}")
        super().__init__(region_dim, hidden_dim, width)
        self.num_heads = num_heads

    def precompute(self, regions: Tensor) -> Tensor:
        return self.key(regions).unflatten(2, (self.num_heads, -1)).movedim(1, 3)  # (R, H, A/H, L)

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        queries = self.query(hidden).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (R, H, K, A/H)
        return (queries @ keys / keys.shape[2] ** 0.5).transpose(1, 2)
