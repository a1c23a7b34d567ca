"""Training loss of hard attention by sampled locations (Xu et al. 2015, Eq. 10 to 12).

Sizes are those of `showattendtell.types`; N is the number of paths of locations that are sampled per caption.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from showattendtell.losses.caption import LossOutput, SoftLoss
from showattendtell.models.captioner import Captioner
from showattendtell.runtime.distributed import mean_over_processes, world_size
from showattendtell.settings import NonNegativeFloat, Probability
from showattendtell.text.vocabulary import PAD
from showattendtell.types import AttentionTargets, BatchShard, CaptionerOutput, SampledLocations


@dataclass(eq=False, repr=False)
class HardLoss(SoftLoss):
    """Maximize the bound L_s = sum_s p(s|a) log p(y|s, a) <= log p(y|a) by sampled paths s (Xu et al. 2015, Eq. 10-12).

    The gradient of L_s is an expectation over p(s|a) and is estimated from samples, with the reward r = log p(y|s, a):

        grad L_s = E[grad r + (r - b) grad log p(s|a)]     for any b that does not depend on s

    The loss of a sample depends on the estimator, an option of the attention:

        reinforce         -r - reward_weight (r - b) log p(s|a) - entropy_weight H[s], b a moving average of r
        rloo              as reinforce, with b the mean reward of the caption's other samples (Kool et al. 2019)
        reinforce_arctic  as reinforce, with (r / T - b) / 10, b of r / T, and the last two terms summed over the batch
        gumbel_st         -r - entropy_weight H[s], differentiated through a relaxation of the samples

    In the second terms r and b are constants: only log p(s|a) is differentiated there. After each batch
    b <- baseline_decay * b + (1 - baseline_decay) * mean(r), the mean over all processes.

    Args:
        doubly_stochastic_weight: lambda, the weight of the doubly stochastic penalty.
        baseline_decay: decay of the baseline's moving average per batch; 1 means no baseline, because b starts at 0.
        penalty_gradient: whether the penalty has a gradient; false: it is only logged, as in the released code.
        reward_weight: lambda_r; 1 is the gradient of L_s itself, smaller values reduce its variance.
        entropy_weight: lambda_e, the weight of the entropy bonus.

    Raises:
        UserError: from `forward`, if the attention does not sample.
    """

    doubly_stochastic_weight: NonNegativeFloat = 0.0
    baseline_decay: Probability = 0.9
    penalty_gradient: bool = True
    reward_weight: NonNegativeFloat = 0.03
    entropy_weight: NonNegativeFloat = 0.002

    kind = "showattendtell.losses.reinforce.HardLoss"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.baseline: Tensor
        self.register_buffer("baseline", torch.tensor(0.0))

    @property
    def is_capturable(self) -> bool:
        return world_size() == 1  # processes capture at different steps, and would wait

    def forward(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard | None = None,
        targets: AttentionTargets | Tensor | None = None,
    ) -> LossOutput:
        """Compute the loss from N samples per caption; the arguments are those of `SoftLoss.forward`.

        With reward_weight=1, and without entropy bonus, penalty, label smoothing and expectations in place of samples,
        the expected gradient is that of -L_s, except with reinforce_arctic and gumbel_st.
        """
        self.check(captioner)
        attention: Any = captioner.attention
        estimator, num_samples = attention.estimator, attention.num_samples
        shard = shard or BatchShard(1.0, len(tokens))
        maps = self.target_maps(targets, tokens)
        # N * B captions: the whole batch once per sample
        image_index, tokens = image_index.repeat(num_samples), tokens.repeat(num_samples, 1)
        num_rows = num_samples * shard.num_captions
        output, nll = self.likelihood(captioner, regions, image_index, tokens, num_rows)
        mask, outputs = tokens != PAD, cast(CaptionerOutput, output.outputs)
        sample = cast(SampledLocations, outputs.sample)
        path, entropy = ((part * mask).sum(dim=1) for part in (sample.log_prob, sample.entropy))  # (N * B,)
        released = estimator == "reinforce_arctic"
        scale = num_rows if released else 1  # turns means over samples into sums over the batch
        output.terms["entropy"] = -self.entropy_weight * (scale * entropy.mean())
        if estimator != "gumbel_st":
            reward = -nll / mask.sum(dim=1) if released else -nll
            if estimator == "rloo":
                by_sample = reward.view(num_samples, -1)  # (N, B)
                mean_of_others = (by_sample.sum(dim=0) - by_sample) / (num_samples - 1)
                advantage = (by_sample - mean_of_others).flatten()  # (N * B,)
            else:
                advantage = (reward - self.baseline) / (10 if released else 1)
            output.terms["reinforce"] = self.reward_weight * (-scale * (advantage * path).mean())
            output.metrics["baseline"] = self.baseline.clone()
            output.metrics["advantage"] = advantage.mean()
            output.metrics["advantage_std"] = advantage.std(correction=0)
            self._update_baseline(reward.mean(), shard)
        return self.supervised(output, None if maps is None else maps.repeat(num_samples, 1, 1))

    def _update_baseline(self, mean_reward: Tensor, shard: BatchShard) -> None:
        """Update the baseline in training with the mean reward of a shard of the batch."""
        if self.training:
            mean_reward = mean_over_processes(shard.weight * mean_reward)
            self.baseline.mul_(self.baseline_decay).add_((1 - self.baseline_decay) * mean_reward)
