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
from showattendtell.models.interfaces import AttentionCache, Decoder, DecoderState, GivenCaptions, Steps
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

    by_region = True

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

    @property
    def fused(self) -> bool:  # type: ignore[override]
        return self.latent == "output"

    @property
    def reads_states(self) -> bool:  # type: ignore[override]
        return self.latent == "step"

    def fuses_decoding(self, decoder: LSTMDecoder) -> bool:
        # the deep output must be a sum, of which something is left without the region
        has_other_terms = decoder.word_output or decoder.hidden_output is not None
        return has_other_terms and isinstance(decoder.activation, nn.Identity)

    def attach(self, captioner: Captioner) -> None:
        if self.latent == "output" and getattr(captioner.decoder, "context_output", self) is None:
            raise ValueError(
                "attention.latent=output needs a deep output that reads the region; add context to decoder.output, or "
                "set attention.latent=step"
            )

    def output_features(self, captioner: Captioner, captions: GivenCaptions, steps: Steps) -> MixtureFeatures:
        num_words, tokens = len(steps.hidden), captions.tokens
        num_captions = len(tokens) if num_words == tokens.numel() else None
        return self.mixture(captioner.decoder, captions.cache, captions.word_images, steps, num_captions)

    def mixture(
        self,
        decoder: Any,
        cache: AttentionCache,
        image_index: Tensor,
        steps: Steps,
        num_captions: int | None = None,
    ) -> MixtureFeatures:
        """Return the inputs of the output layer for N words.

        Args:
            image_index: (N,) the row of `cache` of each word.
            num_captions: see `MixtureFeatures`.
        """
        output_layer, log_weights = (decoder.word_scores.weight, decoder.word_scores.bias), log_of(steps.weights)
        parts = self._region_features(decoder, cache.regions)
        if parts is not None:
            values = decoder.features_without_region(steps.embedded, steps.hidden, steps.context)
            return MixtureFeatures(values, *output_layer, parts, image_index, log_weights, num_captions)

        def compute_inputs(words: Tensor, contexts: Tensor) -> Tensor:
            embedded, hidden = (part[words].unsqueeze(1) for part in (steps.embedded, steps.hidden))
            if self.latent == "step":
                state = DecoderState(*(part[words].unsqueeze(1) for part in steps.previous))
                hidden, _ = decoder.step(steps.word_gates[words].unsqueeze(1), contexts, state)
            return decoder.output_features(embedded, hidden, contexts)

        return MixtureFeatures(
            steps.hidden, *output_layer, cache.regions, image_index, log_weights, num_captions, compute_inputs
        )

    def _region_features(self, decoder: Any, regions: Tensor) -> Tensor | None:
        """Return what each region adds to the input of the output layer, (R, L, w), if that input is such a sum."""
        return decoder.region_features(regions) if self.latent == "output" else None

    def word_scorer(self, decoder: Any, cache: AttentionCache, words: Tensor) -> WordScorer:
        parts = self._region_features(decoder, cache.regions)
        if parts is None:
            return MixtureScorer(self, decoder, cache, words)
        return TableScorer(decoder, words, region_table(parts, words))

    def region_scores(self, decoder: Any, regions: Tensor) -> Tensor | None:
        parts = self._region_features(decoder, regions)
        return None if parts is None else parts @ decoder.word_scores.weight.T

    def log_probs(self, decoder: Any, cache: AttentionCache, steps: Steps, region_scores: Tensor | None) -> Tensor:
        if region_scores is None:
            rows = torch.arange(len(steps.hidden), device=steps.hidden.device)
            return self.mixture(decoder, cache, rows, steps).word_log_probs(rows)
        # log sum_i alpha_i p(v | a_i) from the scores s_v + r_iv
        scores = decoder.word_scores(decoder.features_without_region(steps.embedded, steps.hidden, steps.context))
        by_region = (scores.unsqueeze(1) + region_scores).log_softmax(dim=2)  # (B, L, V)
        return (by_region + log_of(steps.weights).unsqueeze(2)).logsumexp(dim=1)


class TableScorer(WordScorer):
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
        scores = self.multiply(features).add_(self.decoder.word_scores.bias)
        grid, rows = self._rows.grid(images)
        if rows is not None:
            self._table = self._table[rows]
        log_p = table_log_probs(self._table, scores, log_of(weights), grid)
        return log_p, log_p.new_zeros(len(log_p))


class MixtureScorer(WordScorer):
    """log p of the next words from the scores of all regions."""

    def __init__(self, attention: MarginalAttention, decoder: Decoder, cache: AttentionCache, words: Tensor):
        super().__init__(decoder, words)
        self._attention, self._cache = attention, cache

    def __call__(self, steps: Steps, images: Tensor) -> tuple[Tensor, Tensor]:
        log_p = self._attention.mixture(self.decoder, self._cache, images, steps).logits()
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

    loss = "showattendtell.extensions.latent.loss.VariationalLoss"
    fused = MarginalAttention.fused

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
