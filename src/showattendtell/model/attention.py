"""Where to look: weights over the regions, and the context vector that they give."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.arguments import PositiveInt

REGION_STD = 0.01
"""Layers that read regions start with N(0, 0.01^2), as the released code does: the regions of some networks are so
large that wider weights would drive every tanh to its ends, where the LSTM's state has no say in them."""


class Memory(NamedTuple):
    """What is kept of the images: the regions (R, L, D), and their keys (R, L, A) for the score."""

    regions: Tensor
    keys: Tensor

    def select(self, rows: Tensor) -> "Memory":
        return Memory(self.regions[rows], self.keys[rows])


class Glimpse(NamedTuple):
    """One look of every caption at its image: the context z (B, D), alpha (B, L), and beta (B,)."""

    context: Tensor
    weights: Tensor
    gate: Tensor


class SoftAttention(nn.Module):
    """Deterministic "soft" attention (Xu et al. 2015, Sec. 4.2).

        e_i = u . tanh(W_a a_i + W_h h + b)     alpha = softmax(e)
        beta = sigmoid(w . h + c)               z = beta * sum_i alpha_i a_i

    Args:
        region_dim: D.
        hidden_dim: n, the width of the LSTM's state h.
        width: A, the hidden width of the score.
        gate: multiply the context by beta; without it beta is 1.
    """

    def __init__(self, region_dim: PositiveInt, hidden_dim: PositiveInt, width: PositiveInt = 512, gate: bool = True):
        super().__init__()
        self.key = nn.Linear(region_dim, width, bias=False)
        self.query = nn.Linear(hidden_dim, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.gate = nn.Linear(hidden_dim, 1) if gate else None
        nn.init.normal_(self.key.weight, std=REGION_STD)

    def remember(self, regions: Tensor) -> Memory:
        """The part of the score that depends on the image alone: once per image, not per step or caption."""
        return Memory(regions, self.key(regions))

    def forward(self, memory: Memory, hidden: Tensor) -> Glimpse:
        """One step of the captions whose states are `hidden` (B, n).

        Each row of `memory` serves B / R captions that follow each other, as the beams of one image do.
        """
        queries = self.query(hidden).unflatten(0, (len(memory.keys), -1))  # (R, B/R, A)
        scores = self.score(torch.tanh(memory.keys.unsqueeze(1) + queries.unsqueeze(2))).squeeze(-1)  # (R, B/R, L)
        weights = scores.softmax(dim=-1)
        context = torch.bmm(weights, memory.regions).flatten(0, 1)  # (B, D)
        weights = weights.flatten(0, 1)
        if self.gate is None:
            return Glimpse(context, weights, weights.new_ones(len(weights)))
        gate = torch.sigmoid(self.gate(hidden))  # (B, 1)
        return Glimpse(gate * context, weights, gate.squeeze(-1))
