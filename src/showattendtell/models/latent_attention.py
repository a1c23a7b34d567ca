"""Attention as a latent variable, without sampling at inference (Deng et al. 2018, "Latent Alignment and Variational
Attention").

Step t reads one region z_t, which nobody observes. The probability of its word is the mean over all regions:

    p(y_t) = sum_i alpha_ti p(y_t | a_i)

Sizes are those of `models.attention`; w is the width of the output layer's input, and N a number of words.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from showattendtell.models.attention import AttentionCache, SoftAttention
from showattendtell.models.decoder import Decoder, DecoderState, RecurrentDecoder, start_small
from showattendtell.models.kernels.mixture import MixtureFeatures, log_of
from showattendtell.models.kernels.products import Linear
from showattendtell.models.scores import AdditiveScore, ScoreFunction
from showattendtell.settings import PositiveFloat, PositiveInt

Latent = Literal["output", "step"]
VariationalEstimator = Literal["reinforce", "rloo", "gumbel", "exact"]


class MarginalAttention(SoftAttention):
    """Marginal attention: log p(y_t) = log sum_i alpha_ti p(y_t | a_i), summed over all regions (Deng et al. 2018).

    The decoder's state reads the expected region sum_i alpha_i a_i, as that of soft attention. What is computed is the
    log-likelihood of one of two models:

    - `latent="output"`: the latent region of step t changes the deep output of step t alone. No later step depends on
      it, and the product over steps is exactly the sum over all L^T sequences of regions. It needs a deep output that
      reads the context (`context` in `decoder.output`) or `decoder=log_bilinear`, whose state has no context. It is
      fast where the deep output is a sum, and L times as expensive with `decoder.output_tanh`.
    - `latent="step"`: the latent region is also read by the LSTM in step t, as in hard attention. There the next step
      would depend on it. Step t + 1 starts from the state of the expected region instead, the approximation of Deng et
      al. for decoders that feed the context back. It is exact for captions of one word, and L times as
      expensive.

    There is no gate. The output's dropout drops a channel of L_z a_i in all regions of an image.

    Args:
        score: the score function of a region and the state; it must have one attention map (one head).
        latent: what depends on the latent region in its step: the deep output, or the LSTM's step too.

    Raises:
        ValueError: the score has several heads.
    """

    marginal = True

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
        latent: Latent = "output",
    ):
        super().__init__(region_dim, hidden_dim, score, gate="none")
        if self.score.num_heads > 1:
            raise ValueError(
                f"the sum over latent regions needs a score with one head, got num_heads={self.score.num_heads}"
            )
        self.latent = latent

    def check_fit(self, decoder: RecurrentDecoder) -> None:
        """Raise a `ValueError` if no word depends on the latent region."""
        if self.latent == "output" and getattr(decoder, "context_output", decoder) is None:
            raise ValueError(
                "attention.latent=output needs a deep output that reads the region; add context to decoder.output, or "
                "set attention.latent=step"
            )

    def mixture(
        self,
        decoder: RecurrentDecoder,
        cache: AttentionCache,
        image_index: Tensor,
        embedded: Tensor,
        word_gates: Tensor,
        previous: DecoderState | None,
        hidden: Tensor,
        context: Tensor,
        weights: Tensor,
        num_captions: int | None = None,
    ) -> MixtureFeatures:
        """Return the inputs of the output layer for N words.

        Args:
            image_index: (N,) the row of `cache` of each word.
            embedded: E y of the words before, (N, m), and their `word_gates` (N, ...).
            previous: the states before the step, (N, ...); used by `latent="step"`.
            hidden: h after the step, (N, n).
            context: z, (N, D), and `weights`, alpha (N, L).
            num_captions: see `MixtureFeatures`.
        """
        output_layer, log_weights = (decoder.word_scores.weight, decoder.word_scores.bias), log_of(weights)
        parts = decoder.region_features(cache.regions) if self.latent == "output" else None
        if parts is not None:
            values = decoder.features_without_region(embedded, hidden, context)
            return MixtureFeatures(values, *output_layer, parts, image_index, log_weights, num_captions)

        def compute_inputs(words: Tensor, contexts: Tensor) -> Tensor:
            inputs = embedded[words].unsqueeze(1)
            if self.latent == "output":
                return decoder.output_features(inputs, hidden[words].unsqueeze(1), contexts)
            assert previous is not None
            state = DecoderState(*(part[words].unsqueeze(1) for part in previous))
            next_state = decoder.step(word_gates[words].unsqueeze(1), contexts, state)
            return decoder.output_features(inputs, next_state.hidden, contexts)

        return MixtureFeatures(
            hidden, *output_layer, cache.regions, image_index, log_weights, num_captions, compute_inputs
        )


class VariationalAttention(MarginalAttention):
    """Variational attention: trains the model of marginal attention by a lower bound of log p (Deng et al. 2018).

    An inference network q sees the word y_t. The bound (ELBO) is at most log p, and equal if q is the posterior
    p(z_t | y) = alpha_i p(y_t | a_i) / p(y_t):

        log p(y_t) >= sum_i q_i log p(y_t | a_i) - KL(q || alpha)

    A step of training scores the words with one region, as soft attention does, and not with all. At inference, and in
    the validation's log p, the prior alpha is summed over as in marginal attention.

    Args:
        score: the score function of a region and the state; it must have one attention map (one head).
        latent: what depends on the latent region in its step: the deep output, or the LSTM's step too.
        estimator: the gradient of the bound. reinforce: regions sampled from q, with the moving baseline of hard
            attention; rloo: each sample's baseline is the mean of the word's other samples; gumbel: the deep output
            reads a Gumbel-softmax sample (Jang et al. 2017), of a relaxed objective; exact: the sum over all regions.
        num_samples: the number of samples per word.
        gumbel_tau: the softmax temperature of gumbel; smaller means less bias and more variance.
        width: the width of the inference network.

    Raises:
        ValueError: the score has several heads, or estimator=rloo with one sample.
    """

    variational = True

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
        latent: Latent = "output",
        estimator: VariationalEstimator = "reinforce",
        num_samples: PositiveInt = 1,
        gumbel_tau: PositiveFloat = 1.0,
        width: PositiveInt = 256,
    ):
        super().__init__(region_dim, hidden_dim, score, latent)
        if estimator == "rloo" and num_samples < 2:
            raise ValueError(
                f"estimator=rloo compares a word's samples; num_samples must be 2 or more, got {num_samples}"
            )
        self.estimator, self.num_samples, self.gumbel_tau = estimator, num_samples, gumbel_tau
        self.region_dim, self.hidden_dim, self.width = region_dim, hidden_dim, width

    def inference_network(self, decoder: Decoder) -> "InferenceNetwork":
        """Return a new inference network for the decoder."""
        return InferenceNetwork(self.region_dim, self.hidden_dim, decoder.word_scores.in_features, self.width)


class InferenceNetwork(nn.Module):
    """The inference network of variational attention:

        q(z_t = i | y) = softmax_i(log alpha_ti + v_t . U a_i)     v_t = V tanh(W [h_t; L_o(y_t)] + b) + c

    Given the states, the posterior of z_t depends on the caption through y_t and the state of its step alone, so q
    reads nothing else. The score approximates log p(y_t | a_i), which the posterior adds to log alpha; L_o(y_t) is the
    row of the output layer. With the initial weights q is close to alpha.

    Args:
        region_dim: D.
        hidden_dim: n.
        word_dim: w, the width of the output layer's rows.
        width: of v_t.
    """

    def __init__(self, region_dim: int, hidden_dim: int, word_dim: int, width: int):
        super().__init__()
        self.word = nn.Sequential(Linear(hidden_dim + word_dim, width), nn.Tanh(), Linear(width, width))
        self.region = start_small(Linear(region_dim, width, bias=False))

    def forward(self, hidden: Tensor, words: Tensor, regions: Tensor, mixture: MixtureFeatures) -> Tensor:
        """Return log q (N, L). The alpha of the mixture is taken as a constant.

        Args:
            hidden: h (N, n), and `words`, the rows of the output layer of the words (N, w).
            regions: (I, L, D).
            mixture: of the words.
        """
        queries = self.word(torch.cat([hidden, words], dim=1))  # (N, width)
        scores = mixture.product_by_image(queries, self.region(regions).mT)
        log_weights = mixture.log_weights.detach()
        return (log_weights + scores.to(log_weights.dtype)).log_softmax(dim=1)
