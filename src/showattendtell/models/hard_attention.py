"""Stochastic "hard" attention: a location is sampled at every step (Xu et al. 2015, Sec. 4.1).

Sizes are those of `models.attention`.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.attention import Gate, ScoredAttention
from showattendtell.models.interfaces import AttentionCache, AttentionOutput, DecoderState, InferenceMode
from showattendtell.models.scores import AdditiveScore, ScoreFunction
from showattendtell.settings import PositiveFloat, PositiveInt, Probability
from showattendtell.types import SampledLocations

Estimator = Literal["reinforce", "reinforce_arctic", "gumbel_st", "rloo"]


class HardAttention(ScoredAttention):
    """Stochastic "hard" attention: z = a_s, s ~ Multinoulli(alpha) (Xu et al. 2015, Eq. 8 and 9).

    Args:
        score: the score function of a region and the state.
        gate: beta = sigmoid(W h + b), one number per step (scalar) or one per channel (channel); none: beta = 1.
        estimator: the gradient estimator of the sampled locations. reinforce: the paper's; reinforce_arctic: with the
            scaling of the released code; rloo: each sample's baseline is the mean of the other samples; gumbel_st:
            straight-through, lower variance but biased.
        num_samples: N, the number of sampled paths per caption of a batch.
        expectation_prob: the probability that training uses sum_i alpha_i a_i instead of samples for a caption.
        expectation_scope: make that choice per image or once per batch.
        inference_mode: the context outside training: a sample, the region with the largest weight, or the expectation.
        inverse_temperature: the factor that multiplies the scores.
        gumbel_tau: the softmax temperature of gumbel_st; smaller means less bias and more variance.

    Raises:
        ValueError: estimator=rloo with one sample.
    """

    samples = True
    loss = "showattendtell.losses.reinforce.HardLoss"

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
        gate: Gate = "none",
        estimator: Estimator = "reinforce",
        num_samples: PositiveInt = 1,
        expectation_prob: Probability = 0.5,
        expectation_scope: Literal["image", "batch"] = "image",
        inference_mode: InferenceMode = "sample",
        inverse_temperature: PositiveFloat = 1.0,
        gumbel_tau: PositiveFloat = 1.0,
    ):
        super().__init__(region_dim, hidden_dim, score, gate)
        if estimator == "rloo" and num_samples < 2:
            raise ValueError(
                f"estimator=rloo compares a caption's samples; num_samples must be 2 or more, got {num_samples}"
            )
        self.estimator, self.num_samples = estimator, num_samples
        self.expectation_prob, self.expectation_scope = expectation_prob, expectation_scope
        self.inference_mode, self.inverse_temperature, self.gumbel_tau = inference_mode, inverse_temperature, gumbel_tau

    @property
    def fused(self) -> bool:
        return not (self.training and self.estimator == "gumbel_st")

    def precompute(self, regions: Tensor) -> AttentionCache:
        """Also choose the images whose captions use the expectation at all steps."""
        cache, images = super().precompute(regions), len(regions)
        if self.training:
            draws = torch.rand(1 if self.expectation_scope == "batch" else images, device=regions.device)
            return cache._replace(use_expectation=(draws < self.expectation_prob).expand(images))
        if self.inference_mode == "expectation":
            return cache._replace(use_expectation=torch.ones(images, dtype=torch.bool, device=regions.device))
        return cache

    def forward(self, cache: AttentionCache, state: DecoderState, locations: Tensor | None = None) -> AttentionOutput:
        """Compute one step. Entries of `locations` (B, H) that are at least 0 are used; the others are sampled."""
        log_weights = (self.inverse_temperature * self.scores(cache, state.hidden)).log_softmax(dim=-1)  # (R, K, H, L)
        weights = log_weights.exp()
        use_expectation = None if cache.use_expectation is None else cache.use_expectation.unsqueeze(1)
        if self.training and self.estimator == "gumbel_st" and locations is None:
            # straight-through Gumbel softmax (Jang et al. 2017): argmax_i (log alpha_i + g_i), g_i ~ Gumbel(0, 1), is a
            # sample of alpha; the backward pass is that of softmax((log alpha + g) / tau) in its place
            maps = F.gumbel_softmax(log_weights, tau=self.gumbel_tau, hard=True)
            sampled = maps.detach().argmax(dim=-1)
        else:
            sampled = self.sample(weights, locations)
            maps = F.one_hot(sampled, weights.shape[-1]).to(weights.dtype)
        if use_expectation is not None:
            maps = torch.where(use_expectation[..., None, None], weights, maps)
        context, gate = self.gated(self.read(cache, maps), state.hidden)
        path = SampledLocations.of(log_weights, sampled, use_expectation)
        path = SampledLocations(*(part.flatten(0, 1) for part in path))
        return AttentionOutput(context, weights.mean(dim=2).flatten(0, 1), gate, path)

    @property
    def takes_likeliest(self) -> bool:
        """Whether the location is the argmax instead of a sample."""
        return not self.training and self.inference_mode != "sample"

    def noise(self, num_words: int, keys: Tensor) -> Tensor:
        """Return g (N, L) of N words, from keys (I, L, A), with which argmax_i (log alpha_i + g_i) does what `sample`
        does: Gumbel noise, or zeros for the likeliest location."""
        shape = (num_words, keys.shape[1])
        if self.takes_likeliest:
            return torch.zeros(shape, device=keys.device)
        return -torch.empty(shape, device=keys.device).exponential_().log_()  # -log of Exp(1) is Gumbel(0, 1)

    def sample(self, weights: Tensor, given: Tensor | None) -> Tensor:
        """Sample locations (...) from alpha (..., L); entries of `given` that are not negative replace the samples.

        Outside training, use the argmax unless `inference_mode` is "sample".
        """
        if self.takes_likeliest:
            sampled = weights.argmax(dim=-1)
        else:
            sampled = torch.multinomial(weights.detach().flatten(0, -2), 1).view(weights.shape[:-1])
        return sampled if given is None else torch.where(given.view_as(sampled) >= 0, given.view_as(sampled), sampled)
