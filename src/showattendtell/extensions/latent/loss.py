"""Training loss of variational attention (Deng et al. 2018).

Sizes are those of `showattendtell.types`; N is the number of words of all captions.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.data.vocabulary import PAD
from showattendtell.extensions.latent.mixture import MixtureFeatures
from showattendtell.losses.caption import LossOutput
from showattendtell.losses.reinforce import BaselineLoss
from showattendtell.models.captioner import Captioner
from showattendtell.settings import NonNegativeFloat
from showattendtell.types import AttentionTargets, BatchShard


@dataclass(eq=False, repr=False)
class VariationalLoss(BaselineLoss):
    """Maximize the bound sum_t (E_q[log p(y_t | a_z)] - KL(q_t || alpha_t)) <= log p(y) (Deng et al. 2018, Eq. 3).

    KL is an exact sum over the regions. The first term depends on the attention's estimator:

        exact      sum_i q_i log p(y_t | a_i)
        reinforce  r = log p(y_t | a_z), z ~ q, and (r - b) log q(z) with r and b constant
        rloo       as reinforce, with b the mean reward of the word's other samples (Kool et al. 2019)
        gumbel     log p(y_t | sum_i m_i a_i), m a Gumbel-softmax sample of q

    q reads alpha and the decoder's state as constants: the gradient of the sampled terms reaches only the inference
    network, and alpha learns from the KL. The baseline b is a moving average of the mean reward of a word; see
    `HardLoss`.

    kl_weight: the weight of the KL; 1 is the bound itself.
    reward_weight: lambda_r; 1 is the gradient of the bound itself, smaller values reduce its variance.

    Raises:
        UserError: from `forward`, if the attention has no inference network.
    """

    kl_weight: NonNegativeFloat = 1.0
    reward_weight: NonNegativeFloat = 1.0

    kind = "showattendtell.extensions.latent.loss.VariationalLoss"

    def forward(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard | None = None,
        targets: AttentionTargets | Tensor | None = None,
    ) -> LossOutput:
        """Compute the loss of a batch; the arguments are those of `SoftLoss.forward`. `nll` is minus the bound."""
        self.check(captioner)
        attention: Any = captioner.attention
        shard = shard or BatchShard(1.0, len(tokens))
        input_tokens = self.mix_words(captioner, regions, image_index, tokens)
        outputs = captioner(regions, image_index, tokens, input_tokens)
        features: MixtureFeatures = outputs.output_features
        maps, words = self.target_maps(targets, tokens), tokens.flatten()[outputs.indices]
        is_word = words != PAD

        def over_captions(values: Tensor) -> Tensor:
            """Return the mean over captions of the sums of values (N,) of their words."""
            return outputs.at_steps(values.masked_fill(~is_word, 0.0)).sum(dim=1).mean()

        kl = (features.log_q.exp() * (features.log_q - features.log_weights)).sum(dim=1)
        metrics, reinforce = dict[str, Tensor](), None
        if attention.estimator == "exact":
            loss, nll = self._all_regions(features, words)
        else:
            samples = [self._sample(features, words, attention) for _ in range(attention.num_samples)]
            loss, nll, log_prob = (torch.stack(part) for part in zip(*samples, strict=True))  # (samples, N)
            if attention.estimator != "gumbel":
                reinforce, metrics = self._reinforce(-nll, log_prob, is_word, shard, attention.estimator == "rloo")
            loss, nll = loss.mean(dim=0), nll.mean(dim=0)
        penalty = self.penalty(outputs, tokens, shard.num_captions)
        terms = {
            "likelihood": over_captions(loss),
            "kl": self.kl_weight * over_captions(kl),
            "doubly_stochastic": self.doubly_stochastic_weight * penalty,
        }
        if reinforce is not None:
            terms["reinforce"] = self.reward_weight * over_captions(reinforce)
        metrics |= {"doubly_stochastic": penalty.detach(), "kl": over_captions(kl.detach())}
        return self.supervised(LossOutput(over_captions(nll + kl.detach()), terms, metrics, outputs), maps)

    def _reinforce(
        self, reward: Tensor, log_prob: Tensor, is_word: Tensor, shard: BatchShard, leave_one_out: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each word (N,) for the sampled regions, and metrics, from reward and log q (samples, N);
        update the baseline."""

        def over_words(values: Tensor) -> Tensor:
            return (values * is_word).sum() / (len(values) * is_word.sum())

        baseline = (reward.sum(dim=0) - reward) / (len(reward) - 1) if leave_one_out else self.baseline
        advantage = reward - baseline
        mean = over_words(advantage)
        metrics = {"baseline": self.baseline.clone(), "advantage": mean}
        metrics["advantage_std"] = over_words((advantage - mean).square()).sqrt()
        self.update_baseline(over_words(reward), shard)
        return -(advantage * log_prob).mean(dim=0), metrics

    def _all_regions(self, features: MixtureFeatures, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy, learned and for logging, of the words (N,), the mean of all regions under q. The
        smoothed part is that of the mixture."""
        by_region, mean = features.region_log_probs(targets.unsqueeze(1), with_mean=self.label_smoothing > 0)
        nll = -(features.log_q.exp() * by_region.squeeze(2)).sum(dim=1)
        return torch.lerp(nll, -mean, self.label_smoothing) if self.label_smoothing else nll, nll.detach()

    def _sample(self, features: MixtureFeatures, targets: Tensor, attention: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cross-entropy with a sample, learned and for logging, and log q of the sample, (N,) each."""
        log_q = features.log_q
        if attention.estimator == "gumbel":
            maps, log_prob = F.gumbel_softmax(log_q, tau=attention.gumbel_tau), torch.zeros_like(log_q[:, 0])
        else:
            regions = torch.multinomial(log_q.detach().exp(), 1)  # (N, 1)
            maps = torch.zeros_like(log_q).scatter(1, regions, 1.0)
            log_prob = log_q.gather(1, regions).squeeze(1)
        output = features.at_maps(maps).cross_entropy(targets, self.label_smoothing)
        return output.loss, output.nll, log_prob
