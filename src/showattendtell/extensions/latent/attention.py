"""Attention as a latent variable, without sampling at inference (Deng et al. 2018, "Latent Alignment and Variational
Attention").

Step t reads one region z_t, which nobody observes. The probability of its word is the mean over all regions:

    p(y_t) = sum_i alpha_ti p(y_t | a_i)

Sizes are those of `models.attention`; w is the width of the output layer's input, and N a number of words.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from showattendtell.extensions.latent.mixture import MixtureFeatures, log_of, region_table, table_log_probs
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import CacheRows, Captioner, WordScorer
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.initialization import start_small
from showattendtell.models.interfaces import AttentionCache, Decoder, GivenCaptions, Steps
from showattendtell.models.kernels.products import Linear
from showattendtell.models.scores import AdditiveScore, ScoreFunction
from showattendtell.settings import PositiveFloat, PositiveInt

VariationalEstimator = Literal["reinforce", "rloo", "gumbel", "exact"]


class MarginalAttention(SoftAttention):
    """Marginal attention: log p(y_t) = log sum_i alpha_ti p(y_t | a_i), summed over all regions (Deng et al. 2018).

    The decoder's state reads the expected region sum_i alpha_i a_i, as that of soft attention. The latent region of
    step t changes the deep output of step t alone. No later step depends on it, and the product over steps is exactly
    the sum over all L^T sequences of regions. That is fast where the deep output is a sum with a term of the region.

    There is no gate. The output's dropout drops a channel of L_z a_i in all regions of an image.

    Args:
        score: the score function of a region and the state; it must have one attention map (one head).

    Raises:
        ValueError: the score has several heads; when it is attached, the decoder's output is no such sum.
    """

    fused = True
    by_region = True

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
    ):
        super().__init__(region_dim, hidden_dim, score, gate="none")
        self.region_dim, self.hidden_dim = region_dim, hidden_dim
        if self.score.num_heads > 1:
            raise ValueError(
                f"the sum over latent regions needs a score with one head, got num_heads={self.score.num_heads}"
            )

    def fuses_decoding(self, decoder: LSTMDecoder) -> bool:
        return decoder.word_output or decoder.hidden_output is not None  # something is left without the region

    def attach(self, captioner: Captioner) -> None:
        decoder: Any = captioner.decoder
        if decoder.region_features(torch.empty(0, 1, self.region_dim)) is None:
            raise ValueError(
                "the sum over latent regions needs a deep output that is a sum with a term of the region; add context "
                "to decoder.output, and leave out decoder.output_tanh"
            )

    def output_features(self, captioner: Captioner, captions: GivenCaptions, steps: Steps) -> MixtureFeatures:
        decoder: Any = captioner.decoder
        num_words, tokens = len(steps.hidden), captions.tokens
        parts = decoder.region_features(captions.cache.regions)
        return MixtureFeatures(
            decoder.features_without_region(steps.embedded, steps.hidden, steps.context),
            decoder.word_scores.weight,
            decoder.word_scores.bias,
            parts,
            captions.word_images,
            log_of(steps.weights),
            num_captions=len(tokens) if num_words == tokens.numel() else None,
        )

    def word_scorer(self, decoder: Any, cache: AttentionCache, words: Tensor) -> WordScorer:
        return MixtureScorer(decoder, words, region_table(decoder.region_features(cache.regions), words))

    def region_scores(self, decoder: Any, regions: Tensor) -> Tensor:
        return decoder.region_features(regions) @ decoder.word_scores.weight.T

    def log_probs(self, decoder: Any, cache: AttentionCache, steps: Steps, region_scores: Any) -> Tensor:
        # log sum_i alpha_i p(v | a_i) from the scores s_v + r_iv
        scores = decoder.word_scores(decoder.features_without_region(steps.embedded, steps.hidden, steps.context))
        by_region = (scores.unsqueeze(1) + region_scores).log_softmax(dim=2)  # (B, L, V)
        return (by_region + log_of(steps.weights).unsqueeze(2)).logsumexp(dim=1)


class MixtureScorer(WordScorer):
    """log p of the next words where the output layer's input is a sum with a term of the region.

    Args:
        table: of the regions (I, L, V), from `region_table`.
    """

    reads_context = False

    def __init__(self, decoder: Decoder, words: Tensor, table: Tensor):
        super().__init__(decoder, words)
        self._table, self._rows = table, CacheRows(table)

    def __call__(self, steps: Steps, images: Tensor) -> tuple[Tensor, Tensor]:
        decoder: Any = self.decoder
        features = decoder.features_without_region(steps.embedded, steps.hidden, steps.context)
        return self.score(features, steps.weights, images)

    def score(self, features: Tensor, weights: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.logits(features)
        grid, rows = self._rows.grid(images)
        if rows is not None:
            self._table = self._table[rows]
        log_p = table_log_probs(self._table, scores, log_of(weights), grid)
        return log_p, log_p.new_zeros(len(log_p))


class VariationalAttention(MarginalAttention):
    """Variational attention: trains the model of marginal attention by a lower bound of log p (Deng et al. 2018).

    An inference network q sees the word y_t. The bound (ELBO) is at most log p, and equal if q is the posterior
    p(z_t | y) = alpha_i p(y_t | a_i) / p(y_t):

        log p(y_t) >= sum_i q_i log p(y_t | a_i) - KL(q || alpha)

    A step of training scores the words with one region, as soft attention does, and not with all. At inference, and in
    the validation's log p, the prior alpha is summed over as in marginal attention.

    Args:
        score: the score function of a region and the state; it must have one attention map (one head).
        estimator: the gradient of the bound. reinforce: regions sampled from q, with the moving baseline of hard
            attention; rloo: each sample's baseline is the mean of the word's other samples; gumbel: the deep output
            reads a Gumbel-softmax sample (Jang et al. 2017), of a relaxed objective; exact: the sum over all regions.
        num_samples: the number of samples per word.
        gumbel_tau: the softmax temperature of gumbel; smaller means less bias and more variance.
        width: the width of the inference network.

    Raises:
        ValueError: the score has several heads, or estimator=rloo with one sample.
    """

    loss = "showattendtell.extensions.latent.loss.VariationalLoss"
    fused = True

    def __init__(
        self,
        region_dim: PositiveInt,
        hidden_dim: PositiveInt,
        score: Callable[[int, int], ScoreFunction] = AdditiveScore,
        estimator: VariationalEstimator = "reinforce",
        num_samples: PositiveInt = 1,
        gumbel_tau: PositiveFloat = 1.0,
        width: PositiveInt = 256,
    ):
        super().__init__(region_dim, hidden_dim, score)
        if estimator == "rloo" and num_samples < 2:
            raise ValueError(
                f"estimator=rloo compares a word's samples; num_samples must be 2 or more, got {num_samples}"
            )
        self.estimator, self.num_samples, self.gumbel_tau = estimator, num_samples, gumbel_tau
        self.width = width

    def attach(self, captioner: Captioner) -> None:
        super().attach(captioner)
        word_dim = captioner.decoder.word_scores.in_features
        captioner.posterior = InferenceNetwork(self.region_dim, self.hidden_dim, word_dim, self.width)

    def output_features(self, captioner: Captioner, captions: GivenCaptions, steps: Steps) -> MixtureFeatures:
        mixture = super().output_features(captioner, captions, steps)
        # constants, so that only the inference network learns from samples of q
        rows = mixture.matrix[captions.word_targets].detach()
        posterior: Any = captioner.posterior
        log_q = posterior(steps.hidden.detach(), rows, captions.cache.regions.detach(), mixture)
        return mixture._replace(log_q=log_q)


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
