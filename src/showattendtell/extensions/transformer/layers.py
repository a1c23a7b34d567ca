"""A layer of the transformer decoder (Vaswani et al. 2017).

Sizes are those of `showattendtell.types`, and n is the width of the layers. There are H heads of width d = n / H. R is
the number of images, or of captions whose keys and values were copied from their images; t is the number of words that
were read before.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.models.interfaces import CaptionGrid
from showattendtell.models.kernels.products import Linear


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, with_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q k^T / sqrt(d)) v for queries (R, H, Q, d), keys and values (R, H, K, d), and its weights.

    Args:
        mask: true for the keys that a query may read; broadcast to (R, H, Q, K).
        with_weights: also return the mean of the weights over heads, (R, Q, K); torch's fast attention has none.
    """
    if not with_weights:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask), None
    scores = queries @ keys.mT * queries.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.to(values.dtype) @ values, weights.mean(dim=1)


def rotate(vectors: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair of channels j and j + d / 2 of the vectors (..., d) by the angles (..., d / 2) (Su et al. 2021).

    The product of a query and a key that are rotated by their positions depends on the distance of the positions only.
    """
    first, second = vectors.chunk(2, dim=-1)
    cos, sin = angles.cos().to(vectors), angles.sin().to(vectors)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class LayerOutput(NamedTuple):
    """One layer's output x (B, T, n) and keys and values of all words so far (B, 2, H, t + T, d).

    `self_weights` (B, T, t + T) and `cross_weights` (B, T, L) are means over heads, None unless they were asked for.
    """

    x: Tensor
    past: Tensor
    self_weights: Tensor | None
    cross_weights: Tensor | None


class TransformerLayer(nn.Module):
    """x + self-attention, then x + cross-attention, then x + feed-forward network, each of the normalized x (pre-norm).

    Args:
        width: n.
    """

    def __init__(self, width: int, num_heads: int, feedforward_dim: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.self_norm, self.cross_norm, self.feedforward_norm = (nn.LayerNorm(width) for _ in range(3))
        # Without biases: those of keys change no weight, and the normalized inputs have one that does the rest.
        self.self_inputs = Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.self_output = Linear(width, width)
        self.cross_query = Linear(width, width, bias=False)
        self.cross_inputs = Linear(width, 2 * width, bias=False)  # keys and values
        self.cross_output = Linear(width, width)
        self.feedforward = nn.Sequential(
            Linear(width, feedforward_dim), nn.GELU(), nn.Dropout(dropout), Linear(feedforward_dim, width)
        )
        self.dropout = nn.Dropout(dropout)

    def split(self, vectors: Tensor) -> Tensor:
        """Return vectors (R, Q, c * n) by kind and head: (R, c, H, Q, d)."""
        width = self.self_output.in_features
        return vectors.unflatten(2, (-1, self.num_heads, width // self.num_heads)).movedim(1, 3)

    def precompute(self, regions: Tensor) -> Tensor:
        """Return the keys and values (R, 2, H, L, d) of the projected regions (R, L, n)."""
        return self.split(self.cross_inputs(regions))

    def forward(
        self,
        x: Tensor,
        extend: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        angles: Tensor | None,
        regions: Tensor,
        grid: CaptionGrid | None,
        present: Tensor | None,
        with_weights: tuple[bool, bool],
    ) -> LayerOutput:
        """Compute the layer for T words of each caption.

        Args:
            x: (B, T, n).
            extend: from the words' keys and values (B, 2, H, T, d) to those of all words so far.
            mask: of self-attention, see `attend`.
            angles: of the words' rotary positions, (B or 1, 1, T, d / 2); None without.
            regions: from `precompute`, with a row per caption; with `grid`, per image.
            grid: the captions of each image; needs T = 1.
            present: false for padding among the regions, (R, L); None without.
            with_weights: whether the weights of self-attention and of cross-attention are needed.
        """
        queries, keys, values = self.split(self.self_inputs(self.self_norm(x))).unbind(dim=1)
        if angles is not None:
            queries, keys = rotate(queries, angles), rotate(keys, angles)
        past = extend(torch.stack([keys, values], dim=1))
        attended, self_weights = attend(queries, past[:, 0], past[:, 1], mask, with_weights[0])
        x = x + self.dropout(self.self_output(_merge(attended)))

        queries = self.cross_query(self.cross_norm(x))
        if grid is not None:  # (B, 1, n) to (R, K, n)
            queries = queries[grid.rows].view(len(regions), -1, queries.shape[2])
        region_mask = None if present is None else present[:, None, None]
        attended, cross_weights = attend(
            self.split(queries).squeeze(1), regions[:, 0], regions[:, 1], region_mask, with_weights[1]
        )
        attended = _merge(attended)
        if grid is not None:
            attended = attended.flatten(0, 1)[grid.positions].unsqueeze(1)
            cross_weights = None if cross_weights is None else cross_weights.flatten(0, 1)[grid.positions].unsqueeze(1)
        x = x + self.dropout(self.cross_output(attended))
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        return LayerOutput(x, past, self_weights, cross_weights)


def _merge(heads: Tensor) -> Tensor:
    """Return heads (R, H, Q, d) side by side: (R, Q, n)."""
    return heads.transpose(1, 2).flatten(2)
