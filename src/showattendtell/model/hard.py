"""Stochastic "hard" attention: a location is drawn at every step (Xu et al. 2015, Sec. 4.1)."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.arguments import PositiveFloat, PositiveInt, Probability
from showattendtell.model.attention import Gate, ScoredAttention
from showattendtell.model.scores import AdditiveScore, Score
from showattendtell.model.steps import Glimpse, Memory, State
from showattendtell.records import Sample

Estimator = Literal["reinforce", "reinforce_arctic", "gumbel_st", "rloo", "exact"]


class HardAttention(ScoredAttention):
    """Stochastic "hard" attention: z = a_s, s ~ Multinoulli(alpha) (Xu et al. 2015, Sec. 4.1).

    Args:
        score: how a region and the state are compared.
        gate: beta = sigmoid(W h + b), one number a step (scalar) or one for each channel; none: 1.
        estimator: the gradient through the draws. reinforce: the paper's; reinforce_arctic: with the released code's
            scales; rloo: each of several samples with the others' mean as its baseline; exact: all locations of one
            step tried, the other steps drawn; gumbel_st: straight-through, with lower variance and a bias.
        samples: N, the paths drawn for each caption of a batch.
        expectation: the probability that sum_i alpha_i a_i stands in for the samples of a caption in training.
        switch: whether that is drawn for each image or for the whole batch.
        test: what is looked at outside training: a sample, the likeliest region, or the expectation.
        temperature: multiplies the scores.
        relaxation: the temperature of gumbel_st's softmax; a smaller one has less bias and more variance.
    """

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], Score] = AdditiveScore,
        gate: Gate = "none",
        estimator: Estimator = "reinforce",
        samples: PositiveInt = 1,
        expectation: Probability = 0.5,
        switch: Literal["image", "batch"] = "image",
        test: Literal["sample", "argmax", "expectation"] = "sample",
        temperature: PositiveFloat = 1.0,
        relaxation: PositiveFloat = 1.0,
    ):
        super().__init__(region_dim, hidden_dim, score, gate)
        if estimator == "rloo" and samples < 2:
            raise ValueError(f"estimator=rloo compares a caption's samples; samples must be 2 or more, got {samples}")
        if estimator == "exact" and self.score.heads > 1:
            raise ValueError(f"estimator=exact tries the regions of one map; got a score with {self.score.heads}")
        self.estimator, self.samples = estimator, samples
        self.expectation, self.switch, self.test = expectation, switch, test
        self.temperature, self.relaxation = temperature, relaxation

    def remember(self, regions: Tensor) -> Memory:
        return super().remember(regions)._replace(expected=self._expected(len(regions), regions.device))

    def _expected(self, images: int, device: torch.device) -> Tensor | None:
        """Which images are seen through the expectation, for whole captions (I,)."""
        if not self.training:
            return torch.ones(images, dtype=torch.bool, device=device) if self.test == "expectation" else None
        draws = torch.rand(1 if self.switch == "batch" else images, device=device)
        return (draws < self.expectation).expand(images)

    def forward(self, memory: Memory, state: State, locations: Tensor | None = None) -> Glimpse:
        """One step; where `locations` (B, H) is at least 0 it is looked at, elsewhere a location is drawn."""
        log_weights = (self.temperature * self.scores(memory, state.hidden)).log_softmax(dim=-1)  # (R, K, H, L)
        weights = log_weights.exp()
        expected = None if memory.expected is None else memory.expected.unsqueeze(1)
        if self.training and self.estimator == "gumbel_st" and locations is None:
            maps = F.gumbel_softmax(log_weights, tau=self.relaxation, hard=True)
            drawn = maps.detach().argmax(dim=-1)
        else:
            drawn = self.draw(weights, locations)
            maps = F.one_hot(drawn, weights.shape[-1]).to(weights.dtype)
        if expected is not None:
            maps = torch.where(expected[..., None, None], weights, maps)
        context, gate = self.gated(self.read(memory, maps), state.hidden)
        sample = Sample(*(part.flatten(0, 1) for part in path_of(log_weights, drawn, expected)))
        return Glimpse(context, weights.mean(dim=2).flatten(0, 1), gate, sample)

    def draw(self, weights: Tensor, given: Tensor | None) -> Tensor:
        """Locations (...) from alpha (..., L), or those that are given where they are not negative.

        Outside training nothing is drawn where no sample is looked at.
        """
        if not self.training and self.test != "sample":
            drawn = weights.argmax(dim=-1)
        else:
            drawn = torch.multinomial(weights.detach().flatten(0, -2), 1).view(weights.shape[:-1])
        if given is None:
            return drawn
        given = given.view_as(drawn)
        return torch.where(given >= 0, given, drawn)


def path_of(log_weights: Tensor, drawn: Tensor, expected: Tensor | None) -> Sample:
    """The sample of locations (..., H) drawn from log alpha (..., H, L); log p is 0 where `expected` (...)."""
    log_probability = log_weights.gather(-1, drawn.unsqueeze(-1)).sum(dim=(-2, -1))
    if expected is not None:
        log_probability = log_probability.masked_fill(expected, 0.0)
    entropy = -(log_weights.exp() * log_weights).sum(dim=(-2, -1))  # of alpha = 0 too it has a gradient
    return Sample(drawn, log_probability, entropy)
