"""Where to look: maps over the regions from a score, and the context vector that they give."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from showattendtell.arguments import PositiveInt
from showattendtell.model.scores import AdditiveScore, Score
from showattendtell.model.steps import Glimpse, Memory, State

Gate = Literal["scalar", "channel", "none"]


class Attention(nn.Module, ABC):
    """What every attention is: `remember` once per image, then a look a step.

    Each row of the memory serves B / R captions that follow each other, as the beams of one image do.
    """

    selective = True
    """Whether the maps depend on the image and on the words so far."""

    @abstractmethod
    def remember(self, regions: Tensor) -> Memory:
        """What depends on the images (R, L, D) alone: once per image, not per step or caption."""

    @abstractmethod
    def forward(self, memory: Memory, state: State) -> Glimpse:
        """One step of the captions whose states are `state` (B, n)."""


class ScoredAttention(Attention):
    """Maps that are the softmax of a score, and a gate on the context that they give.

    Args:
        region_dim: D.
        hidden_dim: n, the width of the decoder's state h.
        score: how a region and the state are compared.
        gate: beta = sigmoid(W h + b) multiplies the context: one number a step, one for each channel, or none.
    """

    def __init__(self, region_dim: int, hidden_dim: int, score: Callable[[int, int], Score], gate: Gate):
        super().__init__()
        self.score = score(region_dim, hidden_dim)
        self.gate = None if gate == "none" else nn.Linear(hidden_dim, 1 if gate == "scalar" else region_dim)
        heads = self.score.heads
        head_dim = -(-region_dim // heads)
        self.values = nn.Parameter(torch.empty(heads, region_dim, head_dim)) if heads > 1 else None
        if self.values is not None:
            nn.init.normal_(self.values, std=region_dim**-0.5)

    def remember(self, regions: Tensor) -> Memory:
        return Memory(regions, self.score.remember(regions))

    def scores(self, memory: Memory, hidden: Tensor) -> Tensor:
        """e (R, K, H, L)."""
        return self.score(memory.keys, hidden.unflatten(0, (len(memory.regions), -1)))

    def read(self, memory: Memory, maps: Tensor) -> Tensor:
        """The sum of the regions under each map (R, K, H, L): (B, D).

        Several heads give D / H channels each, the last one fewer where H does not divide D.
        """
        seen = (maps.flatten(1, 2) @ memory.regions).unflatten(1, maps.shape[1:3]).flatten(0, 1)  # (B, H, D)
        if self.values is None:
            return seen.squeeze(1)
        return torch.einsum("bhd,hdv->bhv", seen, self.values).flatten(1)[:, : seen.shape[2]]

    def gated(self, context: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """beta * z (B, D) and beta (B,)."""
        if self.gate is None:
            return context, context.new_ones(len(context))
        beta = torch.sigmoid(self.gate(hidden))
        return beta * context, beta.mean(dim=1)


class SoftAttention(ScoredAttention):
    """Deterministic "soft" attention: z = beta * sum_i alpha_i a_i, alpha = softmax(e) (Xu et al. 2015, Sec. 4.2).

    Args:
        score: how a region and the state are compared.
        gate: beta = sigmoid(W h + b), one number a step (scalar) or one for each channel; none: 1.
    """

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], Score] = AdditiveScore,
        gate: Gate = "scalar",
    ):
        super().__init__(region_dim, hidden_dim, score, gate)

    def forward(self, memory: Memory, state: State) -> Glimpse:
        maps = self.scores(memory, state.hidden).softmax(dim=-1)
        context, gate = self.gated(self.read(memory, maps), state.hidden)
        return Glimpse(context, maps.mean(dim=2).flatten(0, 1), gate)


class AdaptiveAttention(ScoredAttention):
    """Soft attention that can look at what the decoder knows instead of at the image (Lu et al. 2017).

    The visual sentinel s = W (sigmoid(V h) * tanh(c)) competes with the regions: with the maps
    [alpha; 1 - beta] = softmax([e; e_s]) the context is z = sum_i alpha_i a_i + (1 - beta) s. Lu et al. attend with the
    state that has read y_{t-1} and write the sentinel's share as beta; here both attention and sentinel read h_{t-1}
    and c_{t-1}, and beta is the image's share, as the gate is elsewhere.

    Args:
        score: how a region and the state are compared; it has one map.
    """

    def __init__(
        self, region_dim: PositiveInt, hidden_dim: PositiveInt, score: Callable[[int, int], Score] = AdditiveScore
    ):
        super().__init__(region_dim, hidden_dim, score, gate="none")
        if self.score.heads > 1:
            raise ValueError(f"the sentinel competes with the regions of one map; got a score with {self.score.heads}")
        self.sentinel_gate = nn.Linear(hidden_dim, hidden_dim)
        self.sentinel = nn.Linear(hidden_dim, region_dim)

    def forward(self, memory: Memory, state: State) -> Glimpse:
        sentinel = self.sentinel(torch.sigmoid(self.sentinel_gate(state.hidden)) * torch.tanh(state.cell))
        sentinel = sentinel.to(memory.regions.dtype)  # (B, D)
        known = self.score(self.score.remember(sentinel.unsqueeze(1)), state.hidden.unsqueeze(1))  # (B, 1, 1, 1)
        scores = self.scores(memory, state.hidden)
        maps = torch.cat([scores, known.reshape(*scores.shape[:3], 1)], dim=-1).softmax(dim=-1)
        shares = maps.flatten(0, 2)[:, -1:]  # (B, 1)
        context = self.read(memory, maps[..., :-1]) + shares * sentinel
        return Glimpse(context, scores.softmax(dim=-1).flatten(0, 2), 1 - shares.squeeze(1))


class MeanAttention(Attention):
    """No attention: the mean region at every step.

    Args:
        region_dim: D.
        hidden_dim: n.
    """

    selective = False

    def __init__(self, region_dim: PositiveInt, hidden_dim: PositiveInt):
        super().__init__()

    def remember(self, regions: Tensor) -> Memory:
        return Memory(regions, regions.mean(dim=1))

    def forward(self, memory: Memory, state: State) -> Glimpse:
        captions = len(state.hidden)
        context = memory.keys.repeat_interleave(captions // len(memory.keys), dim=0)
        num_regions = memory.regions.shape[1]
        return Glimpse(context, context.new_full((captions, num_regions), 1 / num_regions), context.new_ones(captions))
