"""Attention: weights alpha over the regions from a score, and the context vector z that they give.

Sizes are those of `showattendtell.types`; R is the number of rows of an `AttentionCache` (images), K = B / R the number
of captions per row, and H the number of attention maps (heads).
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from showattendtell.models.interfaces import AttentionCache, AttentionOutput, DecoderState, StepAttention
from showattendtell.models.kernels.products import Linear
from showattendtell.models.scores import AdditiveScore, ScoreFunction
from showattendtell.settings import PositiveInt

Gate = Literal["scalar", "channel", "none"]


class ScoredAttention(StepAttention):
    """Attention weights from the softmax of a score, with a gate on the context vector.

    Args:
        region_dim: D.
        hidden_dim: n, the width of the decoder's state h.
        score: the score function of a region and the state.
        gate: beta = sigmoid(W h + b), one number per step (scalar) or one per channel (channel), multiplies the
            context; none: beta = 1.

    With H > 1 heads, each head reads the regions through its own matrix V_h (D, ceil(D / H)), and their outputs are
    concatenated: z = beta [V_1^T r_1; ...; V_H^T r_H], r_h = sum_i alpha_hi a_i.
    """

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
        gate: Gate = "scalar",
    ):
        super().__init__()
        self.inverse_temperature = 1.0
        self.score = score(region_dim, hidden_dim)
        self.gate = None if gate == "none" else Linear(hidden_dim, 1 if gate == "scalar" else region_dim)
        heads = self.score.num_heads
        head_dim = -(-region_dim // heads)  # rounded up
        self.values = nn.Parameter(torch.empty(heads, region_dim, head_dim)) if heads > 1 else None
        if self.values is not None:
            nn.init.normal_(self.values, std=region_dim**-0.5)

    def precompute(self, regions: Tensor) -> AttentionCache:
        return AttentionCache(regions, self.score.precompute(regions))

    def scores(self, cache: AttentionCache, hidden: Tensor) -> Tensor:
        """Return the scores e (R, K, H, L) of the states (B, n)."""
        return self.score(cache.keys, hidden.unflatten(0, (len(cache.regions), -1)))

    def read(self, cache: AttentionCache, maps: Tensor) -> Tensor:
        """Return the context vectors (B, D), before the gate, of the attention maps (R, K, H, L)."""
        contexts = (maps.flatten(1, 2) @ cache.regions).unflatten(1, maps.shape[1:3]).flatten(0, 1)  # (B, H, D)
        if self.values is None:
            return contexts.squeeze(1)
        # H * ceil(D / H) channels, of which the last are cut off if H does not divide D
        return torch.einsum("bhd,hdv->bhv", contexts, self.values).flatten(1)[:, : contexts.shape[2]]

    def gated(self, context: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return beta times the context (B, D), and beta (B,), its mean over channels if it has several."""
        if self.gate is None:
            return context, context.new_ones(len(context))
        beta = torch.sigmoid(self.gate(hidden))
        return beta * context, beta.mean(dim=1)


class SoftAttention(ScoredAttention):
    """Deterministic "soft" attention: z = beta sum_i alpha_i a_i, alpha = softmax(e) (Xu et al. 2015, Eq. 4, 5, 13)."""

    fused = True

    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        maps = self.scores(cache, state.hidden).softmax(dim=-1)
        context, gate = self.gated(self.read(cache, maps), state.hidden)
        return AttentionOutput(context, maps.mean(dim=2).flatten(0, 1), gate)


class AdaptiveAttention(ScoredAttention):
    """Adaptive attention: soft attention with a visual sentinel (Lu et al. 2017).

    The sentinel s competes with the regions for the weight of 1:

        s = W (sigmoid(V h) * tanh(c))     [w; 1 - beta] = softmax([e; e_s])     z = sum_i w_i a_i + (1 - beta) s

    There are two differences from Lu et al. Attention and sentinel read h_{t-1} and c_{t-1} instead of the state that
    has read y_{t-1}. And beta is the weight of the image, like the gate of the other attentions; theirs is that of the
    sentinel. The reported alpha = softmax(e) = w / beta sums to 1.

    Args:
        score: the score function of a region and the state; it must have one attention map (one head).

    Raises:
        ValueError: the score has several heads.
    """

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
    ):
        super().__init__(region_dim, hidden_dim, score, gate="none")
        if self.score.num_heads > 1:
            raise ValueError(
                f"attention with a sentinel needs a score with one head, got num_heads={self.score.num_heads}"
            )
        self.sentinel_gate = Linear(hidden_dim, hidden_dim)
        self.sentinel = Linear(hidden_dim, region_dim)

    def attach(self, captioner: Any) -> None:
        if not getattr(captioner.decoder, "has_cell", False):
            decoder = type(captioner.decoder).__name__
            raise ValueError(
                f"attention=adaptive reads the memory cell of an LSTM, and {decoder} has none; use it with decoder=lstm"
            )

    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        sentinel = self.sentinel(torch.sigmoid(self.sentinel_gate(state.hidden)) * torch.tanh(state.cell))
        sentinel = sentinel.to(cache.regions.dtype)  # (B, D)
        # e_s, (B, 1, 1, 1): the sentinel of each caption is scored like the single region of an image
        sentinel_score = self.score(self.score.precompute(sentinel.unsqueeze(1)), state.hidden.unsqueeze(1))
        scores = self.scores(cache, state.hidden)  # (R, K, 1, L)
        maps = torch.cat([scores, sentinel_score.reshape(*scores.shape[:3], 1)], dim=-1).softmax(dim=-1)
        sentinel_weight = maps.flatten(0, 2)[:, -1:]  # 1 - beta, (B, 1)
        context = self.read(cache, maps[..., :-1]) + sentinel_weight * sentinel
        return AttentionOutput(context, scores.softmax(dim=-1).flatten(0, 2), 1 - sentinel_weight.squeeze(1))


class MeanAttention(StepAttention):
    """No attention: the context vector is the mean region at every step.

    Args:
        region_dim: D.
        hidden_dim: n.
    """

    selective = False

    def __init__(self, region_dim: PositiveInt, hidden_dim: PositiveInt):
        super().__init__()

    def precompute(self, regions: Tensor) -> AttentionCache:
        return AttentionCache(regions, regions.mean(dim=1))

    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        images, num_regions, _ = cache.regions.shape
        context = cache.keys.repeat_interleave(len(state.hidden) // images, dim=0)
        weights = context.new_full((len(context), num_regions), 1 / num_regions)
        return AttentionOutput(context, weights, context.new_ones(len(context)))
